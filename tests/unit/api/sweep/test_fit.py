"""The search for the largest value that fits: what it asks, what it finds, and what it says."""

from __future__ import annotations

import pytest

from helpers.sweeps import NO_PLAN, footprint, planned, search
from memplan.api.sweep.fit import LARGEST, caveats, in_words, next_numbers
from memplan.api.sweep.point import Answer, Failure
from memplan.errors import EXIT_MODEL


def peak(value: int) -> Answer:
    """10 bytes each, of which plans can take off up to 5; the floor is at 4."""
    return footprint(10 * value, 4 * value)


def plan(value: int) -> Answer:
    needed = 1 - 1000 / (10 * value)
    return planned(1000, max(0.0, needed), nodes=int(needed > 0)) if 5 * value <= 1000 else NO_PLAN


def test_the_largest_is_found_with_its_cost() -> None:
    fit, asked = search(1000, peak, plan)
    assert (fit.as_it_is, fit.largest, fit.floor_allows, fit.refused) == (100, 200, 250, 201)
    assert fit.plan is not None
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


def test_plans_are_made_only_from_what_fits_as_it_is_on() -> None:
    _, asked = search(1000, peak, plan)
    plans = [value for value, planning in asked if planning]
    assert min(plans) == 100  # which is where the cost begins
    assert max(plans) == 251  # the first whose floor is too high, which fusions might lower
    assert len(plans) <= 15
    assert len(asked) - len(plans) <= 30


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (0, None, (1, 2, 4)),
        (4, None, (8, 16, 32)),
        (4, 5, ()),
        (0, 1, ()),
        (4, 6, (5,)),
        (4, 8, (5, 6, 7)),
        (100, 200, (125, 150, 175)),
        (LARGEST - 1, None, (LARGEST,)),
        (LARGEST, None, ()),
    ],
)
def test_next_numbers(low: int, high: int | None, wanted: tuple[int, ...]) -> None:
    assert next_numbers(low, high) == wanted


def test_a_peak_that_never_grows_fits_at_any_size() -> None:
    fit, _ = search(1000, lambda v: footprint(10, 4), lambda v: NO_PLAN)
    assert (fit.as_it_is, fit.largest, fit.refused) == (LARGEST, LARGEST, None)


def test_only_multiples_of_the_step_are_asked() -> None:
    fit, asked = search(1000, peak, plan, step=16)
    assert all(value % 16 == 0 for value, _ in asked)
    assert (fit.as_it_is, fit.largest, fit.refused) == (96, 192, 208)


def test_nothing_fits_as_it_is() -> None:
    fit, _ = search(8, peak, lambda value: planned(8) if value == 1 else NO_PLAN)
    assert (fit.as_it_is, fit.largest, fit.how) == (0, 1, "recomputed")
    assert in_words(fit).endswith("nothing as it is")


def test_nothing_fits_at_all() -> None:
    fit, _ = search(3, peak, lambda value: NO_PLAN)
    assert (fit.largest, fit.how, fit.refused) == (0, "none", 1)
    assert in_words(fit) == "nothing fits 3 (3 B): not even N=1 with recomputation"


def test_rewriting_may_bring_nothing() -> None:
    fit, _ = search(1000, lambda value: footprint(10 * value, 10 * value), lambda value: NO_PLAN)
    assert (fit.largest, fit.how, fit.plan) == (100, "as it is", None)
    assert (
        in_words(fit) == "N up to 100 fits 1000 (1000 B) as it is; rewriting does not reach further"
    )


def test_what_is_free_is_not_called_recomputation() -> None:
    fit, _ = search(1000, peak, lambda v: planned(1000, 0.0, 0) if v <= 120 else NO_PLAN)
    assert (fit.largest, fit.how) == (120, "free")
    assert "without recomputation" in in_words(fit)


def test_fusions_may_reach_below_the_floor_of_the_file() -> None:
    fit, _ = search(1000, peak, lambda v: planned(1000) if v <= 300 else NO_PLAN)
    assert (fit.floor_allows, fit.largest, fit.refused) == (250, 300, 301)


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


def test_json_has_every_figure() -> None:
    fit, _ = search(1000, peak, plan)
    found = fit.as_json()
    assert found["how"] == "recomputed"
    assert (found["dim"], found["largest"], found["as_it_is"]) == ("N", 200, 100)
    assert found["budget_bytes"] == 1000
    assert found["dims"] == {}
