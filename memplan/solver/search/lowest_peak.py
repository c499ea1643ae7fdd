"""The plan of least peak, whatever it costs; and a search from one given plan.

What greedy reaches for a budget depends on where it comes from: it gets stuck in front of its aim.
So the aim goes down step by step, each time from the lowest plan so far, as a frontier is traced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from memplan.deadline import Deadline
from memplan.solver.bound.milp import Effort
from memplan.solver.evaluate import IMPOSSIBLE, decide
from memplan.solver.problem import Decision, Ints, Problem
from memplan.solver.search.anytime import solve
from memplan.solver.search.params import SearchOptions

_LOG = logging.getLogger(__name__)

# Steps end when they are smaller than this share of the lowest peak.
_FINEST = 1e-3
# Aims, at most.
_AIMS = 24


def solve_from(
    problem: Problem,
    start: Ints,
    deadline: Deadline,
    options: SearchOptions,
    found: Callable[[Ints], None] | None = None,
    enough: Callable[[float], bool] | None = None,
) -> Decision:
    """The best sequence found until ``deadline`` from ``start`` alone, which need not fit."""
    begin = decide(problem, start)
    if begin.peak >= IMPOSSIBLE:
        return decide(problem, problem.start)
    narrow = replace(options, params=replace(options.params, starts=0))
    if begin.feasible:
        return solve(problem, deadline, replace(narrow, starts=(start,)), found, enough)
    return solve(replace(problem, start=start), deadline, narrow, found, enough)


def lowest_peak(
    problem: Problem, begin: Decision, effort: Effort, options: SearchOptions, floor: int = 0
) -> Decision:
    """The lowest peak that aims from ``begin`` downwards reach; ``floor``: no plan goes below.
    There are as many restarts with noise for an aim as ``options`` has rounds.

    The decision speaks of the problem's own budget, and is as cheap as pruning makes it.
    """
    quick = replace(options, params=replace(options.params, starts=0))

    def fits_or_over(extra: float) -> bool:
        """What it costs does not matter here."""
        return extra < float("inf") or effort.over()

    best, low = begin, floor
    for _ in range(_AIMS):
        if effort.over() or best.peak - low <= _FINEST * best.peak:
            break
        aim = low + (best.peak - low) // 2
        lower = replace(problem, budget=aim, start=best.sequence)
        found = solve(lower, effort.deadline, quick, enough=fits_or_over)
        _LOG.debug("aim %d B: lowest peak %d B", aim, found.peak)
        if found.peak < best.peak:
            best = decide(problem, found.sequence)
        if found.peak > aim:
            low = aim
    return best
