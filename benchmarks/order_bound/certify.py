"""Certified lower bounds on recomputation: how much better can any plan be?

The bound is that of a time-aggregated mixed-integer program
(:mod:`benchmarks.order_bound.blocks`), solved for few checkpoints at first. The solution is
turned into a real sequence; where its exact memory is over the budget, checkpoints are added, and
so on: cutting planes in time. When a solution keeps the budget, it is an optimal plan.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.order_bound.blocks import Blocks
from benchmarks.order_bound.kept_order import contract, held_bytes, hold_until_read
from benchmarks.order_bound.rounding import RoundedPlan, refinements, round_solution
from memplan.deadline import Deadline
from memplan.solver.bound.milp import Effort
from memplan.solver.bound.relaxation import free_small, relax
from memplan.solver.problem import Ints, Problem

_LOG = logging.getLogger(__name__)

KIND = "for this node order"

# Relative error to allow the solver: bounds are reported lower by this much.
_TOLERANCE = 1e-6
# Relative distance between bound and best solution at which a program counts as solved.
_GAP = 1e-4
_FIRST_CHECKPOINTS = 4
# Small tensors, in sum this share of the budget, are kept for free at first.
_SMALL = 1e-3
_SMALL_FROM = 400  # tensors


@dataclass(frozen=True, slots=True)
class Bound:
    """Seconds of extra cost that no sequence with the same order of first computations undercuts.

    ``infeasible``: no such sequence keeps the budget at all. ``sequence``: a plan that was found
    on the way and keeps the budget, or None.
    """

    seconds: float
    kind: str
    method: str
    wall_seconds: float
    infeasible: bool
    sequence: Ints | None = None


def lower_bound(
    problem: Problem,
    time_limit: float,
    upper: float | None = None,
    stop: Callable[[], bool] | None = None,
) -> Bound:
    """Bound the extra cost of every sequence that keeps the order of first computations.

    Args:
        problem: what to bound; nodes stay where ``order`` has them, movable or not.
        time_limit: seconds of wall time; 0: only what takes no time.
        upper: extra cost in seconds of a known plan. The bound never exceeds it; when it comes
            within a millionth, the plan is optimal and ``upper`` itself is returned.
        stop: asked now and then whether to give up.
    """
    return _Certifier(problem, time_limit, upper, stop).run()


class _Certifier:
    """State of one run."""

    def __init__(
        self,
        problem: Problem,
        time_limit: float,
        upper: float | None,
        stop: Callable[[], bool] | None,
    ) -> None:
        self.problem, self.stop = problem, stop
        self.deadline = Deadline(time_limit)
        self.upper = math.inf if upper is None else upper
        self.given = upper
        self.best = 0.0
        self.method = "structure"
        self.plan: RoundedPlan | None = None
        self.infeasible = False
        self.step = _common_step(problem)

    def run(self) -> Bound:
        relaxation = relax(self.problem)
        usual, _ = held_bytes(relaxation)
        hold_until_read(relaxation)
        _, needed = held_bytes(relaxation)
        if len(needed) and needed.max() > self.problem.budget:
            self.infeasible = self.given is None
        elif not self._done() and len(usual) and usual.max() > self.problem.budget:
            share = _SMALL if len(relaxation.size) >= _SMALL_FROM else 0.0
            checkpoints = first_checkpoints(usual, self.problem.budget, _FIRST_CHECKPOINTS)
            crowded: set[int] = set()
            for small in (share, 0.0) if share else (0.0,):
                if not self._done():
                    self._refine(small, checkpoints, crowded)
        return self._bound()

    def _refine(self, share: float, checkpoints: set[int], crowded: set[int]) -> None:
        """Solve, simulate, look closer; until nothing is over the budget any more."""
        relaxation = relax(self.problem)
        if share:
            free_small(relaxation, share)
        hold_until_read(relaxation)
        contract(relaxation)
        while not self._done():
            ordered = sorted(checkpoints)
            places = {ordered.index(s) for s in crowded if s in checkpoints}
            blocks = Blocks(relaxation, ordered, places, self.problem.base_cost)
            answer = blocks.program.solve(Effort(self.deadline, self.stop), _GAP, self._enough())
            self._learn(answer.bound, len(ordered))
            _LOG.debug("certificate: %d checkpoints, %.6g s or more", len(ordered), self.best)
            if answer.values is None:
                return
            found = round_solution(self.problem, blocks, answer.values)
            if found.fits and found.cost < self.upper:
                self.plan, self.upper = found, found.cost
            steps, more = refinements(found, blocks, crowded, max(3, len(ordered) // 2))
            if not steps and not more:
                return
            checkpoints |= steps
            crowded |= more

    def _learn(self, bound: float, checkpoints: int) -> None:
        if math.isinf(bound) and math.isinf(self.upper):
            self.infeasible = True
            return
        bound = min(bound, self.upper)
        if bound > self.best:
            self.best = bound
            self.method = f"time-aggregated program with {checkpoints} checkpoints"

    def _left(self) -> float:
        return self.deadline.left

    def _enough(self) -> float:
        """The bound from which on the known plan counts as optimal."""
        return self.upper * (1 - _TOLERANCE) if not self.step else self.upper - 0.9 * self.step

    def _done(self) -> bool:
        halted = self.stop is not None and self.stop()
        closed = self.best >= self._enough()
        return halted or closed or self.infeasible or self._left() <= 0

    def _bound(self) -> Bound:
        seconds = self.best * (1 - _TOLERANCE)
        if self.step:
            seconds = math.ceil((seconds - 0.05 * self.step) / self.step) * self.step
        if self.best >= self._enough():
            seconds = self.upper
        seconds = max(0.0, min(seconds, self.upper))
        bound = Bound(
            seconds if math.isfinite(seconds) else 0.0,
            KIND,
            self.method,
            self.deadline.spent,
            self.infeasible,
            None if self.plan is None else self.plan.sequence,
        )
        _LOG.info(
            "certificate: at least +%.3f%% by %s in %.1f s%s",
            100 * bound.seconds / (self.problem.base_cost or 1.0),
            bound.method,
            bound.wall_seconds,
            "; no plan in this order keeps the budget" if bound.infeasible else "",
        )
        return bound


def first_checkpoints(nbytes: Ints, budget: int, count: int) -> set[int]:
    """The fullest step of every one of ``count`` equal parts of the steps over budget."""
    over = np.flatnonzero(nbytes > budget)
    parts = np.array_split(over, min(count, len(over)))
    return {int(part[nbytes[part].argmax()]) for part in parts}


def _common_step(problem: Problem) -> float:
    """The greatest number that all costs are multiples of, if they are whole; else 0."""
    costs = problem.arrays.cost
    whole = np.rint(costs).astype(np.int64)
    if not np.array_equal(whole, costs) or not whole.any():
        return 0.0
    step = float(np.gcd.reduce(whole))
    # Only as far as the solver's error stays well below one step.
    return step if problem.base_cost * _TOLERANCE < 0.05 * step else 0.0
