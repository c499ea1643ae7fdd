"""Placement: hand cases, gapless instances with a known optimum, and the pieces one by one."""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from helpers.models import load_benchmark
from helpers.placements import Rectangle, arrays_of, checked_height, gapless, worn

_branch, _place, _restarts = (
    load_benchmark(f"placing.{name}") for name in ("branch", "place", "restarts")
)
FOUND, IMPOSSIBLE, STOPPED = _branch.FOUND, _branch.IMPOSSIBLE, _branch.STOPPED
fit_in_order = load_benchmark("placing.fit").fit_in_order
max_live, place = _place.max_live, _place.place
cut, find_below, luby = _restarts.cut, _restarts.find_below, _restarts.luby

# Never more than 4 bytes are live at once, and yet these need 5: tests/property enumerates all
# orders.
AWKWARD = [(3, 5, 1), (4, 7, 1), (1, 4, 2), (1, 2, 2), (5, 8, 2), (2, 6, 1), (7, 10, 2)]


def placed(buffers: list[Rectangle], capacity: int | None = None, **options: float) -> Any:
    """Place and check the offsets by plain Python."""
    placement = place(*arrays_of(buffers), capacity, tolerance=0.0, **options)  # type: ignore[arg-type]
    assert placement.height == checked_height(buffers, placement.offsets)
    assert placement.max_live <= placement.bound <= placement.height
    return placement


def test_nothing_needs_nothing() -> None:
    placement = placed([])
    assert placement.offsets == ()
    assert placement.height == placement.max_live == 0
    assert placement.proven


def test_buffers_one_after_the_other_share_their_place() -> None:
    # The second starts when the first ends: lifetimes are half open.
    placement = placed([(0, 2, 5), (2, 4, 7), (4, 9, 6)])
    assert placement.offsets == (0, 0, 0)
    assert placement.height == placement.max_live == 7


def test_buffers_at_once_do_not() -> None:
    placement = placed([(0, 3, 5), (2, 4, 7)])
    assert sorted(placement.offsets) == [0, min(5, 7) if placement.offsets[0] == 0 else 7]
    assert placement.height == 12


def test_empty_buffers_take_no_part() -> None:
    placement = placed([(0, 9, 0), (0, 2, 3), (4, 5, 0)])
    assert placement.offsets == (0, 0, 0)
    assert placement.height == 3


@pytest.mark.parametrize(
    ("buffers", "message"),
    [([(3, 3, 1)], "buffer 0 ends"), ([(0, 1, 1), (0, 1, -2)], "buffer 1 has a negative size")],
)
def test_impossible_buffers(buffers: list[Rectangle], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        place(*arrays_of(buffers))


def test_arrays_of_different_lengths() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        place(np.zeros(2, np.int64), np.ones(2, np.int64), np.ones(3, np.int64))


def test_a_height_above_max_live_is_proven_to_be_needed() -> None:
    placement = placed(AWKWARD)
    assert (placement.max_live, placement.bound, placement.height) == (4, 5, 5)
    assert placement.proven
    assert placement.searched


def test_a_capacity_that_cannot_hold_them() -> None:
    below = placed(AWKWARD, capacity=3)
    assert not below.searched  # max-live says it already
    assert below.height >= 5
    exact = placed(AWKWARD, capacity=4)
    assert exact.bound == 5


def test_a_capacity_is_enough() -> None:
    buffers = gapless(80, 60, 4096, seed=1)
    loose = placed(buffers, capacity=8192)
    assert loose.height <= 8192
    assert (loose.fits, loose.searched) == (1, False)


@pytest.mark.parametrize("seed", [1, 2])
def test_gapless_instances_are_solved_by_the_search(seed: int) -> None:
    buffers = gapless(120, 60, 4096, seed)
    placement = placed(buffers, seconds=60.0)
    assert placement.max_live == placement.height == 4096
    assert placement.fits == 10
    assert placement.searched  # or the instance would be too easy


def test_the_tolerance_ends_the_search_early() -> None:
    buffers = gapless(120, 60, 4096, seed=1)
    lowest = min(
        checked_height(buffers, placed(buffers, capacity=capacity).offsets)
        for capacity in (8192, 5000)
    )
    loose = place(*arrays_of(buffers), tolerance=lowest / 4096 - 1 + 1e-9)
    assert not loose.searched
    assert loose.height <= lowest


def test_without_time_there_is_still_a_placement() -> None:
    placement = placed(gapless(120, 60, 4096, seed=1), seconds=0.0)
    assert (placement.fits, placement.searched) == (1, False)
    assert not placement.proven


def test_max_live_at_one_moment() -> None:
    assert max_live(*arrays_of([(0, 2, 5), (2, 4, 7), (1, 3, 1)])) == 8


def fit_plainly(order: list[int], buffers: list[Rectangle], smallest: bool) -> list[int]:
    """Best-fit or first-fit, transcribed without any index."""
    offsets: dict[int, int] = {}
    for i in order:
        lower, upper, size = buffers[i]
        near = sorted(
            (offset, offset + buffers[j][2])
            for j, offset in offsets.items()
            if buffers[j][0] < upper and lower < buffers[j][1]
        )
        end, gaps = 0, []
        for bottom, top in near:
            if bottom - end >= size:
                gaps.append((bottom - end if smallest else 0, end))
            end = max(end, top)
        offsets[i] = min(gaps)[1] if gaps else end
    return [offsets[i] for i in range(len(buffers))]


@pytest.mark.parametrize("smallest", [True, False])
def test_best_fit_is_its_plain_transcription(smallest: bool) -> None:
    draw = random.Random(5)
    for count in (1, 63, 64, 65, 200):
        starts = sorted(draw.randrange(300) for _ in range(count))
        buffers = [(s, s + draw.choice([1, 3, 9, 80]), draw.randint(1, 9)) for s in starts]
        order = draw.sample(range(count), count)
        offsets, height = fit_in_order(np.asarray(order), *arrays_of(buffers), smallest)
        assert offsets.tolist() == fit_plainly(order, buffers, smallest)
        assert height == checked_height(buffers, offsets)


def test_best_fit_takes_the_smallest_gap_and_first_fit_the_lowest() -> None:
    # Gaps of 4 at 0 and of 2 at 5 when the last one comes.
    buffers = [(0, 2, 4), (0, 9, 1), (0, 2, 2), (0, 9, 1), (3, 5, 2)]
    best, _ = fit_in_order(np.arange(5), *arrays_of(buffers), True)
    first, _ = fit_in_order(np.arange(5), *arrays_of(buffers), False)
    assert best.tolist() == [0, 4, 5, 7, 5]
    assert first.tolist() == [0, 4, 5, 7, 0]


def test_sections_are_the_largest_sets_of_buffers_live_together() -> None:
    lower, upper, _ = arrays_of([(0, 4, 1), (1, 2, 1), (2, 3, 1), (3, 9, 1), (5, 6, 1)])
    first, last, count = cut(lower, upper)
    assert count == 4
    assert list(zip(first.tolist(), last.tolist(), strict=True)) == [
        (0, 3),
        (0, 1),
        (1, 2),
        (2, 4),
        (3, 4),
    ]


def test_luby() -> None:
    found = islice((luby(k) for k in range(1, 99)), 15)
    assert list(found) == [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]


def test_outcomes_of_the_search() -> None:
    lower, upper, size = arrays_of(sorted(AWKWARD))
    assert find_below(lower, upper, size, 4, 60.0, 0) == (IMPOSSIBLE, None)
    outcome, offsets = find_below(lower, upper, size, 5, 60.0, 0)
    assert outcome == FOUND
    assert offsets is not None
    assert checked_height(sorted(AWKWARD), offsets) == 5
    hard = sorted(gapless(400, 300, 1 << 20, seed=3))
    assert find_below(*arrays_of(hard), 1 << 20, 0.01, 0) == (STOPPED, None)


# A tall gap must stay in the middle: without that branch the search says that 479 is impossible.
FLOATING = [
    (0, 14, 20),
    (2, 3, 42),
    (3, 4, 64),
    (3, 11, 24),
    (3, 18, 51),
    (5, 11, 56),
    (5, 15, 31),
    (5, 20, 56),
    (8, 22, 72),
    (11, 17, 27),
    (12, 13, 57),
    (13, 18, 29),
    (14, 20, 22),
    (15, 16, 68),
    (18, 28, 22),
    (19, 27, 19),
    (20, 26, 83),
    (20, 33, 49),
    (20, 35, 64),
    (24, 27, 50),
    (24, 30, 6),
    (24, 33, 18),
    (24, 38, 77),
    (27, 37, 17),
    (28, 36, 81),
    (30, 44, 19),
    (31, 41, 82),
    (32, 37, 25),
    (32, 38, 4),
    (32, 45, 43),
    (35, 50, 32),
    (36, 44, 55),
    (36, 50, 92),
    (39, 47, 97),
]


def test_a_gap_is_left_where_it_must_be() -> None:
    outcome, offsets = find_below(*arrays_of(FLOATING), 479, 60.0, 2)
    assert outcome == FOUND
    assert offsets is not None
    assert checked_height(FLOATING, offsets) == 479 == max_live(*arrays_of(FLOATING))


def test_no_instance_that_fits_is_called_impossible() -> None:
    for seed in range(1400):  # a wrong way back is seen in three of them
        buffers = worn(30, 20, 60, seed)
        outcome, offsets = find_below(*arrays_of(buffers), 60, 60.0, 0)
        assert outcome == FOUND
        assert offsets is not None
        assert checked_height(buffers, offsets) <= 60


# --- benchmarks/placing/__main__.py --------------------------------------------------------------


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    """The script, which is no part of the package."""
    return load_benchmark("placing.__main__")


def test_the_benchmark_places_verifies_and_writes(benchmark: ModuleType, tmp_path: Path) -> None:
    for name, buffers in (("easy.5.csv", AWKWARD), ("never.4.csv", AWKWARD)):
        lines = [
            "id,lower,upper,size",
            *(f"{k},{a},{b},{z}" for k, (a, b, z) in enumerate(buffers)),
        ]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    arguments = ["--instances", str(tmp_path), "--json", str(tmp_path / "out.json")]
    assert benchmark.main([*arguments, "--record", str(tmp_path / "record.json")]) == 1
    easy, never = json.loads((tmp_path / "out.json").read_text())
    expected = {"instance": "easy", "buffers": 7, "max_live": 4, "height": 5, "capacity": 5}
    assert easy == {**expected, "solved": True, "seconds": easy["seconds"]}
    assert (never["capacity"], never["solved"]) == (4, False)
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["results"] == [easy, never]
    assert str(tmp_path) not in json.dumps(record)
    assert benchmark.main([*arguments, "--capacity", "6"]) == 0


@pytest.mark.parametrize(
    ("offsets", "message"),
    [([0], "1 offsets"), ([0, -1], "lies at"), ([0, 4], "buffers 7 and 8 overlap")],
)
def test_the_benchmark_sees_wrong_offsets(
    benchmark: ModuleType, offsets: list[int], message: str
) -> None:
    buffers = [(7, 0, 2, 5), (8, 1, 3, 5)]
    assert benchmark.verify(buffers, [0, 5]) == 10
    with pytest.raises(benchmark.VerificationError, match=message):
        benchmark.verify(buffers, offsets)
