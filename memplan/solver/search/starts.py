"""Orders to start from: the given one and new ones, each eased by moves.

No single order is best to recompute in; the search tries many. New orders come from beams with
random factors: which of them leads to the cheapest plan shows only afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memplan.solver.evaluate import evaluate, excess_of
from memplan.solver.order.beam import resequence
from memplan.solver.order.local import reorder, settle
from memplan.solver.problem import Flags, Ints, Problem
from memplan.solver.search.neighbourhood import drop_orphans
from memplan.solver.search.params import SearchParams
from memplan.solver.search.prune_sequence import free_clones

# Less of the excess than this share is not worth going on for when a start is eased.
_WORTH_IT = 0.999


@dataclass(frozen=True, slots=True)
class Starts:
    """Makes starts for one search; ``random`` is drawn from, in the order of the calls."""

    problem: Problem
    movable: Flags  # (N) may stand elsewhere
    random: np.random.Generator
    params: SearchParams

    def ordered(self, number: int) -> Ints:
        """The ``number``-th order to start from, as the runtime runs it: 0 is the given order, 1
        the one that a beam finds, the others are random."""
        params, problem = self.params, self.problem
        start = problem.start
        if number == 0 or len(start) > params.longest_beam:
            return self.ease(start)
        noise, budget = 0.0, problem.budget
        if number > 1:
            noise = float(self.random.choice(params.beam_noises))
            budget = int(problem.budget * self.random.choice(params.beam_budgets))
        order = resequence(problem.arrays, start, self.movable, budget, params.beam, noise)
        return self.ease(settle(problem.arrays, order))

    def shaken(self, best: Ints) -> Ints:
        """``best`` without many of its recomputations, its order eased again."""
        problem, random = self.problem, self.random
        original = np.isin(np.arange(len(problem.movable)), problem.order)
        again = np.zeros(len(best), np.bool_)
        again[free_clones(best, original, problem.protected)] = True
        low = int(random.integers(len(best)))
        high = low + int(random.integers(len(best) // 4, len(best) + 1))
        inside = (np.arange(len(best)) >= low) & (np.arange(len(best)) < high)
        drop = again & inside & (random.random(len(best)) < random.choice(self.params.shakes))
        return self.ease(drop_orphans(problem.arrays, best[~drop]))

    def ease(self, sequence: Ints) -> Ints:
        """``sequence`` after moves that lower the summed excess, while they do."""
        arrays, budget, params = self.problem.arrays, self.problem.budget, self.params
        excess = float(excess_of(evaluate(arrays, sequence), budget))
        idle = 0
        for _ in range(params.ease_calls):
            if excess <= 0 or idle >= params.ease_idle:
                break
            before = excess
            sequence, excess = reorder(arrays, sequence, self.movable, budget, params.ease_moves)
            idle = 0 if excess < _WORTH_IT * before else idle + 1
        return sequence
