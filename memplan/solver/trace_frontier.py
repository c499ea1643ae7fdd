"""Budget → extra cost, for a dozen budgets between the floor and the peak.

From the peak downwards, every budget starts from the plan of the next larger one as well as from
scratch. A plan for a tighter budget also holds for a looser one, so at the end each point takes
over a tighter one's plan where that is cheaper: the frontier is monotone by construction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from memplan.deadline import Deadline
from memplan.solver.evaluate import evaluate
from memplan.solver.problem import Decision, Problem, better
from memplan.solver.search.anytime import solve
from memplan.solver.search.params import SearchOptions
from memplan.solver.search.warm_up import warm_up


@dataclass(frozen=True, slots=True)
class Point:
    """One budget (dynamic bytes and workspace) and the best plan for it."""

    budget: int
    decision: Decision
    extra_cost_fraction: float
    clones: int


def budgets_between(floor: int, peak: int, points: int) -> list[int]:
    """``points`` budgets from ``floor`` to ``peak``, both included, evenly spread."""
    if peak <= floor or points < 2:
        return [peak]
    return [floor + (peak - floor) * k // (points - 1) for k in range(points)]


def trace_frontier(
    problem: Problem,
    budgets: Sequence[int],
    seconds: float,
    seed: int = 0,
    progress: Callable[[int, int, int], None] | None = None,
) -> list[Point]:
    """A point per budget, ascending; infeasible ones carry the lowest peak that was reached.

    Args:
        problem: its own budget is ignored.
        budgets: dynamic bytes and workspace.
        seconds: for all budgets together, compilation not counted.
        seed: of the search.
        progress: called before each budget with its index, their number, and the budget.
    """
    warm_up()
    ordered = sorted(set(budgets), reverse=True)
    share = seconds / max(len(ordered), 1)
    found: dict[int, Decision] = {}
    previous: Decision | None = None
    for index, budget in enumerate(ordered):
        if progress is not None:
            progress(index, len(ordered), budget)
        found[budget] = previous = _solve_point(
            replace(problem, budget=budget), previous, share, seed
        )
    cheapest: Decision | None = None
    for budget in reversed(ordered):
        decision = found[budget]
        if cheapest is not None and better(cheapest, decision):
            found[budget] = decision = cheapest
        if decision.feasible:
            cheapest = decision
    base = problem.base_cost
    return [
        Point(
            budget,
            found[budget],
            found[budget].extra_cost / base if base else 0.0,
            len(found[budget].sequence) - len(np.unique(found[budget].sequence)),
        )
        for budget in reversed(ordered)
    ]


def _solve_point(
    problem: Problem, previous: Decision | None, seconds: float, seed: int
) -> Decision:
    """From scratch, and from the plan for the next larger budget."""
    peak = int(evaluate(problem.arrays, problem.start).total.max(initial=0))
    if peak <= problem.budget:
        return Decision(problem.start, peak, 0.0, True)
    options = SearchOptions(seed=seed)
    decision = solve(problem, Deadline(seconds / 2), options)
    if previous is not None:
        warm = solve(replace(problem, start=previous.sequence), Deadline(seconds / 2), options)
        decision = warm if better(warm, decision) else decision
    return decision
