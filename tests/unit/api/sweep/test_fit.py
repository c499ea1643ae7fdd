"""The search for the largest value that fits: what it asks, what it finds, and what it says."""

from collections.abc import Callable
from typing import Any

import pytest

from helpers.sweeps import NO_PLAN, footprint, planned, search
from memplan.api.sweep.fit import LARGEST, caveats, in_words
from memplan.api.sweep.point import Answer, Failure
from memplan.errors import EXIT_MODEL

Question = Callable[[int], Answer]


def peak(value: int) -> Answer:
    """10 bytes each, of which plans can take off up to 5; the floor is at 4."""
    return footprint(10 * value, 4 * value)


def plan(value: int) -> Answer:
    needed = 1 - 1000 / (10 * value)
    return planned(1000, max(0.0, needed), nodes=int(needed > 0)) if 5 * value <= 1000 else NO_PLAN


def test_the_largest_is_found_with_its_cost() -> None:
    fit, asked = search(1000, peak, plan)
    assert (fit.as_it_is, fit.largest, fit.floor_allows, fit.refused) == (100, 200, 250, 201)
    assert fit.plan.extra_cost_fraction == pytest.approx(0.5)
    assert fit.how == "recomputed"
    assert fit.monotone
    assert in_words(fit) == (
        "N up to 200 fits 1000 (1000 B) with recomputation, 50.00% more time (bound 25.00%); 100 "
        "as it is"
    )
    (note,) = caveats(fit)
    assert note == "N=201: no plan found; the floor fits up to 250"
    assert len(asked) == len(set(asked))
    found = fit.as_json()
    assert (found["how"], found["dim"], found["dims"]) == ("recomputed", "N", {})
    assert (found["largest"], found["as_it_is"], found["budget_bytes"]) == (200, 100, 1000)


def test_plans_are_made_only_from_what_fits_as_it_is_on() -> None:
    _, asked = search(1000, peak, plan)
    plans = [value for value, planning in asked if planning]
    assert min(plans) == 100  # which is where the cost begins
    assert max(plans) == 251  # the first whose floor is too high, which fusions might lower
    assert len(plans) <= 15
    assert len(asked) - len(plans) <= 30


def flat(value: int) -> Answer:
    return footprint(10, 4)


def rigid(value: int) -> Answer:
    return footprint(10 * value, 10 * value)


def up_to(most: int, *more: Any) -> Question:
    """A plan for any value that is not larger."""
    return lambda value: planned(1000, *more) if value <= most else NO_PLAN


# A budget, what is asked, and how far it goes: as it is, at all, what is refused, how, in words.
FITS: list[tuple[int, Question, Question, tuple[Any, ...], str]] = [
    (1000, flat, up_to(0), (LARGEST, LARGEST, None, "as it is"), ""),
    (8, peak, up_to(1), (0, 1, 2, "recomputed"), "nothing as it is"),
    (3, peak, up_to(0), (0, 0, 1, "none"), "nothing fits 3 (3 B): not even N=1 with recomputation"),
    (1000, rigid, up_to(0), (100, 100, 101, "as it is"), "rewriting does not reach further"),
    (1000, peak, up_to(120, 0.0, 0), (100, 120, 121, "free"), "without recomputation"),
    # Fusions may reach below the floor of the file, which is at 250.
    (1000, peak, up_to(300), (100, 300, 301, "recomputed"), ""),
]


@pytest.mark.parametrize(("budget", "asked", "answered", "wanted", "words"), FITS)
def test_how_far_it_goes(
    budget: int, asked: Question, answered: Question, wanted: tuple[Any, ...], words: str
) -> None:
    fit, _ = search(budget, asked, answered)
    assert (fit.as_it_is, fit.largest, fit.refused, fit.how) == wanted
    assert words in in_words(fit)


def test_only_multiples_of_the_step_are_asked() -> None:
    fit, asked = search(1000, peak, plan, step=16)
    assert all(value % 16 == 0 for value, _ in asked)
    assert (fit.as_it_is, fit.largest, fit.refused) == (96, 192, 208)


def test_a_peak_that_falls_is_said() -> None:
    fit, _ = search(
        1000, lambda v: footprint(10 * v if v != 2 else 15, 4 * v if v != 2 else 6), plan
    )
    assert fit.monotone
    fit, _ = search(1000, lambda v: footprint(10 * v if v != 4 else 5, 4 * v), plan)
    assert fit.falling == (2, 4)
    assert not fit.monotone
    assert "not monotone in N: it is lower at 4 than at 2" in caveats(fit)[0]


def test_a_plan_that_was_missed_below_another_is_said() -> None:
    """A search may fail where it succeeds for a larger value: its answer is then no certificate."""
    fit, _ = search(1000, peak, lambda v: NO_PLAN if v == 137 else plan(v))
    assert 137 in fit.missed
    assert fit.largest == 200
    assert not fit.monotone
    assert caveats(fit)[0].startswith("no plan was found for N=137, though one was for 200")


@pytest.mark.parametrize("planning", [False, True])
def test_a_failure_ends_the_search(planning: bool) -> None:
    broken = Failure("cannot be halved", "give an even number", EXIT_MODEL)
    fit, _ = search(1000, peak if planning else lambda v: broken, lambda v: broken)
    assert (fit.how, fit.failure, fit.largest) == ("failed", broken, 0)
    known = "; N=100 fits as it is" if planning else ""
    assert in_words(fit) == f"what fits 1000 (1000 B) is not known: cannot be halved{known}"
