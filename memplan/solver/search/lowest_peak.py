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
from memplan.solver.forms import stripped, with_all_encoded, with_forms, without_forms
from memplan.solver.problem import Decision, Ints, Problem
from memplan.solver.search.anytime import solve
from memplan.solver.search.params import SearchOptions

_LOG = logging.getLogger(__name__)

# Steps end when they are smaller than this share of the lowest peak.
_FINEST = 1e-3
# Restarts with noise for one aim, and the share of the time left that it may take.
_RESTARTS, _SHARE = 12, 0.2
# Where rounds are counted, so many aims; else time is over long before so many.
_AIMS, _MOST_AIMS = 24, 1000


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
    narrow = replace(options, params=replace(options.params, explore=0.0, keep_shaking=False))
    if begin.feasible:
        return solve(problem, deadline, replace(narrow, starts=(start,)), found, enough)
    return solve(replace(problem, start=start), deadline, narrow, found, enough)


def lowest_peak(
    problem: Problem, begin: Decision, effort: Effort, options: SearchOptions, floor: int = 0
) -> Decision:
    """The lowest peak that aims from ``begin`` downwards reach; ``floor``: no plan goes below.

    The decision speaks of the problem's own budget, and is as cheap as pruning makes it. Other
    forms are tried where plans without them have led.
    """
    if not problem.forms:
        return _driven_down(problem, begin, effort, options, floor)
    bare = without_forms(problem)
    foreign = (begin.sequence >= len(bare.arrays.cost)).any()  # it keeps something in another form
    first = decide(bare, bare.start) if foreign else begin
    plain = _driven_down(bare, first, effort.share(0.5), options, floor)
    encoded = with_all_encoded(problem)
    start = decide(encoded, with_forms(problem, plain.sequence))
    found = _driven_down(encoded, start, effort, options, floor)
    lower = decide(problem, stripped(problem, found.sequence))
    return min(lower, decide(problem, plain.sequence), key=lambda decision: decision.peak)


def _driven_down(
    problem: Problem, begin: Decision, effort: Effort, options: SearchOptions, floor: int
) -> Decision:
    """:func:`lowest_peak` of one kind of sequences."""
    counted = options.iterations > 0
    params = replace(options.params, explore=0.0, struggles=_RESTARTS, keep_shaking=False)
    quick = replace(options, params=params, iterations=min(options.iterations, _RESTARTS))

    def fits_or_over(extra: float) -> bool:
        """What it costs does not matter here."""
        return extra < float("inf") or effort.over()

    best, low = begin, floor
    for _ in range(_AIMS if counted else _MOST_AIMS):
        if effort.over() or best.peak - low <= _FINEST * best.peak:
            break
        aim = low + (best.peak - low) // 2
        share = Deadline() if counted else effort.deadline.share(_SHARE)
        lower = replace(problem, budget=aim, start=best.sequence)
        found = solve(lower, share, quick, enough=fits_or_over)
        _LOG.debug("aim %d B: lowest peak %d B", aim, found.peak)
        if found.peak < best.peak:
            best = decide(problem, found.sequence)
        if found.peak > aim:
            low = aim
    return best
