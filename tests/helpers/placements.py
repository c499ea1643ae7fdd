"""Placement instances, and a check of offsets that shares nothing with the planner."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from memplan.solver.problem import Ints

Rectangle = tuple[int, int, int]
"""A buffer: lower, upper, size."""


def arrays_of(buffers: Sequence[Rectangle]) -> tuple[Ints, Ints, Ints]:
    """Columns as the planner takes them."""
    table = np.asarray(buffers, dtype=np.int64).reshape(-1, 3)
    lower, upper, size = (np.ascontiguousarray(column) for column in table.T)
    return lower, upper, size


def checked_height(buffers: Sequence[Rectangle], offsets: Sequence[int] | Ints) -> int:
    """The height of a placement in which nothing overlaps (asserted)."""
    places = [int(offset) for offset in offsets]
    assert len(places) == len(buffers)
    assert all(place >= 0 for place in places)
    for k, (lower, upper, size) in enumerate(buffers):
        for m, (first, last, other) in enumerate(buffers[:k]):
            if lower < last and first < upper and size and other:
                assert places[k] + size <= places[m] or places[m] + other <= places[k]
    return max(
        (p + size for p, (_, _, size) in zip(places, buffers, strict=True) if size), default=0
    )


def gapless(count: int, steps: int, height: int, seed: int) -> list[Rectangle]:
    """``count`` buffers that fill ``steps`` × ``height`` without a gap, shuffled.

    A rectangle is cut in two again and again, either in time or in memory; the optimum is
    ``height``, and every placement that reaches it has no byte to spare at any step.
    """
    draw = random.Random(seed)
    pieces = [(0, steps, 0, height)]
    while len(pieces) < count:
        index = draw.randrange(len(pieces))
        lower, upper, bottom, top = pieces[index]
        in_time = draw.random() < 0.5
        if (upper - lower if in_time else top - bottom) < 2:
            continue
        if in_time:
            middle = draw.randrange(lower + 1, upper)
            halves = [(lower, middle, bottom, top), (middle, upper, bottom, top)]
        else:
            middle = draw.randrange(bottom + 1, top)
            halves = [(lower, upper, bottom, middle), (lower, upper, middle, top)]
        pieces[index : index + 1] = halves
    buffers = [(lower, upper, top - bottom) for lower, upper, bottom, top in pieces]
    draw.shuffle(buffers)
    return buffers


def worn(count: int, steps: int, height: int, seed: int) -> list[Rectangle]:
    """The same with up to eight buffers a little shorter or smaller, sorted by start.

    They still fit in ``height``, and there is hardly a byte to spare.
    """
    draw = random.Random(seed)
    buffers = gapless(count, steps, height, draw.randrange(1 << 30))
    for _ in range(draw.randint(2, 8)):
        index = draw.randrange(count)
        lower, upper, size = buffers[index]
        if upper - lower > 1:
            buffers[index] = (lower + 1, upper, size)
        else:
            buffers[index] = (lower, upper, max(1, size - draw.randint(1, 3)))
    return sorted(buffers)
