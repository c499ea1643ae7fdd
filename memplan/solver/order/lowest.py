"""The order of least peak, without any recomputation.

Moves of single nodes and beams over whole orders (:mod:`memplan.solver.order.local`,
:mod:`memplan.solver.order.beam`) aim at a budget; here the aim is lowered until nothing comes
of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from memplan.deadline import Deadline
from memplan.solver.evaluate import evaluate
from memplan.solver.jit import seed_random
from memplan.solver.order.beam import resequence
from memplan.solver.order.depth_first import depth_first
from memplan.solver.order.local import reorder, settle
from memplan.solver.problem import Flags, Ints, Problem

# How far an aim lies below the peak, as shares of what is left above the floor.
_AIMS = (0.02, 0.1, 0.3, 0.6, 1.0)
# Node moves per attempt; beams get so wide, with random factors of so much.
_MOVES = 1000
_WIDTHS, _NOISES = (24, 8, 64), (0.0, 0.05, 0.2)
# Longer sequences get no beam: it would be too narrow to be any good.
_LONGEST_BEAM = 6000
# Attempts in a row without gain after which the search ends.
_IDLE = 40


@dataclass(frozen=True, slots=True)
class LowestOptions:
    """``rounds``: attempts from every start, so that every run finds the same order; ``deadline``:
    when to stop before that. ``floor``: no order goes below these bytes."""

    rounds: int = 40
    floor: int = 0
    deadline: Deadline = field(default_factory=Deadline)


def lowest_order(
    problem: Problem, options: LowestOptions, others: Sequence[Sequence[int]] = ()
) -> Ints:
    """The order of the problem's nodes with the least peak found, each node once.

    Nodes that are not ``movable`` stay where they are among each other. The search starts from
    ``problem.order``, which is returned as it is where nothing lower was found, and then from the
    depth-first order and ``others``: orders from which other valleys can be reached.
    """
    starts = [np.asarray(order, dtype=np.int64) for order in (depth_first(problem), *others)]
    starts = [order for order in starts if (order != problem.order).any()]
    best = _Descent(problem, options, problem.order)
    best.run()
    for start in starts:
        other = _Descent(problem, options, settle(problem.arrays, start))
        other.run()  # where time is over, its peak alone is looked at
        best = other if other.peak < best.peak else best
    return best.best


class _Descent:
    """The best order so far, and attempts to go below it."""

    def __init__(self, problem: Problem, options: LowestOptions, start: Ints) -> None:
        self.arrays, self.options = problem.arrays, options
        self.movable: Flags = problem.movable
        self.random = np.random.default_rng(0)
        self.best: Ints = start
        self.peak = self._peak(start)

    def run(self) -> None:
        """Attempts until time, rounds or ideas are over."""
        seed_random(0)
        number = idle = 0
        while self.peak > self.options.floor and not self._over(number) and idle < _IDLE:
            idle = 0 if self._offer(self._attempt(number)) else idle + 1
            number += 1

    def _over(self, number: int) -> bool:
        return number >= self.options.rounds or self.options.deadline.passed

    def _attempt(self, number: int) -> Ints:
        """A new order: the best one eased by moves, or every third time one that a beam finds."""
        aim = (
            self.peak
            - 1
            - int(_AIMS[number % len(_AIMS)] * max(self.peak - 1 - self.options.floor, 0))
        )
        order = self.best
        if number % 3 == 1 and len(order) <= _LONGEST_BEAM:
            width = int(self.random.choice(_WIDTHS))
            noise = float(self.random.choice(_NOISES)) if number > 1 else 0.0
            order = resequence(self.arrays, order, self.movable, aim, width, noise)
            order = settle(self.arrays, order)
            self._offer(order)
        order, _ = reorder(self.arrays, order, self.movable, aim, _MOVES)
        return settle(self.arrays, order)

    def _offer(self, order: Ints) -> bool:
        """Keep an order that is lower than the best."""
        peak = self._peak(order)
        if peak >= self.peak:
            return False
        self.best, self.peak = order, peak
        return True

    def _peak(self, order: Ints) -> int:
        return int(evaluate(self.arrays, order).total.max(initial=0))
