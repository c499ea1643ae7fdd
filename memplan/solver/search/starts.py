"""Orders to start from: the given one and new ones, each eased by moves.

No single order is best to recompute in; the search tries many. New orders come from beams with
random factors: which of them leads to the cheapest plan shows only afterwards.
"""

from __future__ import annotations

import numpy as np

from memplan.solver.evaluate import evaluate, excess_of
from memplan.solver.order.beam import resequence
from memplan.solver.order.local import depth_first, reorder, settle
from memplan.solver.problem import Flags, Ints, Problem
from memplan.solver.search.neighbourhood import drop_orphans
from memplan.solver.search.prune import free_clones

# Longer sequences get no order made anew; the beam would be too narrow to be any good.
_LONGEST_BEAM = 6000
# A wide beam comes first; then narrow ones, quicker and more different.
_NARROW, _COUNTED_WIDTH = 24, 16
# Order moves: so many in a call, and calls without gain after which they are given up.
_MOVES, _IDLE_CALLS, _MOST_CALLS = 1000, 2, 25
_NOISES = (0.02, 0.05, 0.2, 0.5)
# Shares of recomputations that are taken out.
_SHAKES = (0.3, 0.6, 1.0)
_BUDGETS = (0.8, 0.9, 1.0, 1.0, 1.1, 1.25)


def ordered_start(
    problem: Problem, movable: Flags, random: np.random.Generator, number: int, counted: bool
) -> Ints:
    """The ``number``-th order to start from, as the runtime runs it.

    0 is the given order, 1 the one that a wide beam finds, 2 the depth-first one, the others are
    random. ``counted``: nothing may depend on how fast this machine is.
    """
    start = problem.start
    arrays, length = problem.arrays, len(start)
    if number == 2 and not problem.protected.any():
        return ease(problem, depth_first(problem), movable)
    if number == 0 or length > _LONGEST_BEAM:
        return ease(problem, start, movable)
    width = _COUNTED_WIDTH if counted else 0 if number == 1 else _NARROW
    noise, budget = 0.0, problem.budget
    if number > 1:
        noise = float(random.choice(_NOISES))
        budget = int(problem.budget * random.choice(_BUDGETS))
    order = resequence(arrays, start, movable, budget, 0, length, width, noise)
    return ease(problem, settle(arrays, order), movable)


def shaken_start(problem: Problem, movable: Flags, random: np.random.Generator, best: Ints) -> Ints:
    """``best`` without many of its recomputations, its order eased again."""
    original = np.isin(np.arange(len(problem.movable)), problem.order)
    again = np.zeros(len(best), np.bool_)
    again[free_clones(best, original, problem.protected)] = True
    low = int(random.integers(len(best)))
    high = low + int(random.integers(len(best) // 4, len(best) + 1))
    inside = (np.arange(len(best)) >= low) & (np.arange(len(best)) < high)
    drop = again & inside & (random.random(len(best)) < random.choice(_SHAKES))
    return ease(problem, drop_orphans(problem.arrays, best[~drop]), movable)


def ease(problem: Problem, sequence: Ints, movable: Flags) -> Ints:
    """``sequence`` after moves that lower the summed excess, while they do."""
    excess = float(excess_of(evaluate(problem.arrays, sequence), problem.budget))
    idle = 0
    for _ in range(_MOST_CALLS):
        if excess <= 0 or idle >= _IDLE_CALLS:
            break
        before = excess
        sequence, excess = reorder(problem.arrays, sequence, movable, problem.budget, _MOVES)
        idle = 0 if excess < 0.999 * before else idle + 1
    return sequence
