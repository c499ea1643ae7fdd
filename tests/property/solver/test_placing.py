"""Placements of random buffers against plain Python."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from helpers.models import load_benchmark
from helpers.placements import Rectangle, arrays_of, checked_height, gapless

_branch = load_benchmark("placing.branch")
FOUND, IMPOSSIBLE = _branch.FOUND, _branch.IMPOSSIBLE
place = load_benchmark("placing.place").place
find_below = load_benchmark("placing.restarts").find_below

QUIET = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
ENOUGH = 600.0  # seconds that none of these comes near


def buffers(most: int, steps: int = 8, longest: int = 6, largest: int = 6) -> st.SearchStrategy:
    """Up to ``most`` buffers, some of them empty."""
    one = st.tuples(st.integers(0, steps), st.integers(1, longest), st.integers(0, largest))
    made = one.map(lambda b: (b[0], b[0] + b[1], b[2]))
    return st.lists(made, min_size=1, max_size=most)


def live(found: list[Rectangle]) -> int:
    """Max-live, moment by moment."""
    moments = range(max(upper for _, upper, _ in found))
    return max(sum(size for a, b, size in found if a <= moment < b) for moment in moments)


def lowest_height(found: list[Rectangle]) -> int:
    """The optimum: every order, each buffer on top of all those before it that it meets in time.

    An optimal placement pushed down is one of these.
    """
    best = sum(size for _, _, size in found)

    def extend(below: list[tuple[Rectangle, int]], left: list[Rectangle], height: int) -> None:
        nonlocal best
        if height >= best:
            return
        if not left:
            best = height
        for k, (lower, upper, size) in enumerate(left):
            tops = [top for (a, b, _), top in below if a < upper and lower < b]
            top = max(tops, default=0) + size
            rest = left[:k] + left[k + 1 :]
            extend([*below, (left[k], top)], rest, max(height, top))

    extend([], found, 0)
    return best


def placed(found: list[Rectangle], seed: int = 0) -> Any:
    return place(*arrays_of(found), seconds=ENOUGH, tolerance=0.0, seed=seed)


@settings(QUIET, max_examples=tries(200))
@given(buffers(40, steps=30, longest=12, largest=50))
def test_buffers_never_overlap(found: list[Rectangle]) -> None:
    placement = place(*arrays_of(found), seconds=1.0)
    assert placement.height == checked_height(found, placement.offsets)
    assert placement.max_live == live(found)
    assert placement.max_live <= placement.bound <= placement.height


@settings(QUIET, max_examples=tries(300))
@given(buffers(6))
def test_small_placements_are_the_optimum(found: list[Rectangle]) -> None:
    placement = placed(found)
    assert placement.height == lowest_height(found)
    assert placement.proven


# Where the optimum is above max-live the proof is the search's; that takes seven buffers or more.
@pytest.mark.slow
@settings(QUIET, max_examples=tries(60))
@given(
    st.sampled_from(
        [
            [(3, 5, 1), (4, 7, 1), (1, 4, 2), (1, 2, 2), (5, 8, 2), (2, 6, 1), (7, 10, 2)],
            [
                (4, 8, 3),
                (2, 5, 2),
                (2, 4, 1),
                (1, 2, 3),
                (5, 9, 3),
                (3, 4, 2),
                (1, 3, 3),
                (3, 5, 1),
            ],
            [
                (1, 2, 2),
                (2, 6, 1),
                (2, 5, 1),
                (3, 4, 1),
                (3, 6, 1),
                (6, 9, 2),
                (1, 3, 2),
                (5, 9, 2),
            ],
        ]
    ),
    st.randoms(use_true_random=False),
)
def test_optima_above_max_live(known: list[Rectangle], draw: random.Random) -> None:
    found = list(known)
    draw.shuffle(found)
    assert lowest_height(found) == live(found) + 1
    placement = placed(found, draw.randrange(99))
    assert placement.height == placement.bound == live(found) + 1


@settings(QUIET, max_examples=tries(300))
@given(st.integers(4, 30), st.integers(4, 30), st.integers(8, 60), st.integers(0), st.data())
def test_the_search_misses_no_placement_that_is_there(
    count: int, steps: int, height: int, seed: int, data: st.DataObject
) -> None:
    found = sorted(gapless(min(count, steps * height // 4), steps, height, seed))
    # Bytes to spare here and there: the search must also leave gaps.
    for k in data.draw(st.sets(st.integers(0, len(found) - 1), max_size=4)):
        lower, upper, size = found[k]
        found[k] = (lower, upper, max(1, size - 1))
    outcome, offsets = find_below(*arrays_of(found), height, 5.0, seed)
    assert outcome != IMPOSSIBLE
    if outcome == FOUND:
        assert offsets is not None
        assert checked_height(found, offsets) <= height


@settings(QUIET, max_examples=tries(50))
@given(st.integers(30, 80), st.integers(0), st.integers(0, 9))
def test_equal_seeds_give_equal_placements(count: int, instance: int, seed: int) -> None:
    found = gapless(count, 40, 1024, instance)
    assert placed(found, seed).offsets == placed(found, seed).offsets
