"""Static placement: one offset per buffer in one arena, as low as it gets.

A buffer is live in ``lower`` ≤ t < ``upper``; buffers that are live together must not overlap in
memory. No arena is smaller than *max-live*, the largest sum of buffers live at once; the *height*
is what a placement needs. Sizes are bytes and are not rounded.

First best-fit and first-fit from several orders (:mod:`benchmarks.placing.fit`); where that
misses the goal, a branch-and-bound search (:mod:`benchmarks.placing.branch`). Nothing here knows of
ONNX. ONNX Runtime places otherwise (:mod:`memplan.simulate.pattern`), so no command offers this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from memplan.solver.problem import NONE, Ints

TOLERANCE = 0.01
"""Without a capacity, a height this much above max-live is good enough."""
DEFAULT_SECONDS = 10.0
SEARCH_LIMIT = 2500
"""The search takes up to this many buffers: its memory grows with their square (about 150 MB)."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Offsets by buffer, and the arena that they need, in bytes.

    ``bound`` is a certified lower bound of any height: max-live, or more where the search
    exhausted all placements below. ``fits`` is how many orders and policies of best-fit were tried;
    ``searched`` whether the search ran too. ``seconds`` is wall time, compiling included.
    """

    offsets: tuple[int, ...]
    height: int
    max_live: int
    bound: int
    fits: int
    searched: bool
    seconds: float

    @property
    def proven(self) -> bool:
        """Whether no placement is lower."""
        return self.height == self.bound


def place(
    lower: Ints,
    upper: Ints,
    size: Ints,
    capacity: int | None = None,
    *,
    seconds: float = DEFAULT_SECONDS,
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> Placement:
    """Place buffers so that they need little memory.

    Args:
        lower: first moment of each buffer.
        upper: one behind its last moment.
        size: bytes; empty buffers get offset 0.
        capacity: stop at a placement that fits in here; whether one was found shows in ``height``.
        seconds: when to give up; the first order is always finished. Compiling, once per version,
            comes on top.
        tolerance: without a capacity, stop at this fraction above max-live; 0: as low as it gets.
        seed: for what the search draws at random. Where it ends before its time, the answer
            depends on nothing else.

    Raises:
        ValueError: lengths differ, a buffer ends before it starts, or a size is negative.
    """
    started = time.perf_counter()
    lower, upper, size = (np.ascontiguousarray(v, dtype=np.int64) for v in (lower, upper, size))
    _check(lower, upper, size)
    real = np.flatnonzero(size)
    real = real[np.lexsort((-upper[real], lower[real]))]
    offsets = np.zeros(len(size), np.int64)
    peak = max_live(lower, upper, size)
    if len(real) == 0:
        return Placement(tuple(offsets.tolist()), 0, 0, 0, 0, False, time.perf_counter() - started)
    goal = int(peak * (1 + tolerance)) if capacity is None else capacity
    descent = _Descent(lower[real], upper[real], size[real], goal, peak, started + seconds, seed)
    descent.fit()
    if descent.height > goal and len(real) <= SEARCH_LIMIT:
        descent.search(capacity is not None)
    offsets[real] = descent.offsets
    return Placement(
        tuple(offsets.tolist()),
        descent.height,
        peak,
        descent.bound,
        descent.fits,
        descent.searched,
        time.perf_counter() - started,
    )


def max_live(lower: Ints, upper: Ints, size: Ints) -> int:
    """The largest number of bytes live at any moment: no arena is smaller."""
    times = np.concatenate([upper, lower])
    change = np.concatenate([-size, size])
    # A stable sort leaves ends in front of starts at the same moment: lifetimes are half open.
    order = np.argsort(times, kind="stable")
    return int(np.cumsum(change[order]).max(initial=0))


def _check(lower: Ints, upper: Ints, size: Ints) -> None:
    if not len(lower) == len(upper) == len(size):
        raise ValueError("lower, upper and size differ in length")
    if (lower >= upper).any():
        raise ValueError(f"buffer {int(np.argmax(lower >= upper))} ends before it starts")
    if (size < 0).any():
        raise ValueError(f"buffer {int(np.argmax(size < 0))} has a negative size")


def _orders(lower: Ints, upper: Ints, size: Ints) -> Iterator[Ints]:
    """The orders for best-fit, best ones first.

    On 23 training graphs size or start alone came within 2.3% of max-live. On the eleven public
    instances no order came within 12%; by end was the best of them on three.
    """
    width = upper - lower
    yield np.lexsort((lower, -width, -size))
    yield np.lexsort((-size, -width, lower))
    # As floats: the product may not fit in 64 bits.
    yield np.lexsort((lower, -size, -(width.astype(np.float64) * size)))
    yield np.lexsort((lower, -size, -width))
    yield np.lexsort((-size, -width, -upper))


@dataclass(slots=True)
class _Descent:
    """The lowest placement so far, and the way down. Buffers are sorted by start."""

    lower: Ints
    upper: Ints
    size: Ints
    goal: int
    bound: int
    deadline: float
    seed: int
    offsets: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    height: int = NONE
    fits: int = 0
    searched: bool = False

    def fit(self) -> None:
        """Best-fit and first-fit from all orders, until one reaches the goal."""
        from benchmarks.placing.fit import fit_in_order

        zero = np.zeros(1, np.int64)
        self._compile(lambda: fit_in_order(zero, zero, zero + 1, zero + 1, True))
        for order in _orders(self.lower, self.upper, self.size):
            for smallest in (True, False):
                self._keep(fit_in_order(order, self.lower, self.upper, self.size, smallest)[0])
                self.fits += 1
                if self.height <= self.goal or time.perf_counter() > self.deadline:
                    return

    def search(self, fixed: bool) -> None:
        """Search at falling heights; ``fixed``: at the goal only.

        The bound comes first, for on training graphs it is reached more often than not; then the
        middle between what was not reached and what was.
        """
        from benchmarks.placing.branch import FOUND, IMPOSSIBLE
        from benchmarks.placing.restarts import find_below

        one = np.ones(1, np.int64)
        self._compile(lambda: find_below(0 * one, one, one, 1, 1.0, 0))
        unknown = target = self.goal if fixed else self.bound
        while unknown < self.height and target >= self.bound:
            left = self.deadline - time.perf_counter()
            if left <= 0:
                return
            share = left if fixed else left / 2
            self.searched = True
            outcome, offsets = find_below(
                self.lower, self.upper, self.size, target, share, self.seed
            )
            if offsets is not None:
                self._keep(offsets)
            elif outcome == IMPOSSIBLE:
                self.bound = target + 1
            if outcome != FOUND:
                unknown = target + 1
            if fixed or self.height <= max(self.goal, self.bound):
                return
            target = (unknown + self.height - 1) // 2

    def _compile(self, call: Callable[[], object]) -> None:
        """Make a small call whose time does not count: the first one compiles."""
        started = time.perf_counter()
        call()
        self.deadline += time.perf_counter() - started

    def _keep(self, offsets: Ints) -> None:
        """Take the placement if it is the lowest so far."""
        height = int((offsets + self.size).max())
        if self.height == NONE or height < self.height:
            self.offsets, self.height = offsets, height
