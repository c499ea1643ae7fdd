"""The lowest peak that any plan reaches, then the cheapest plan that does."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import ClassVar

from memplan.solver.problem import Decision, Problem
from memplan.solver.strategy import Outcome, Progress, Strategy

# Shares of the time: for published planners, and for driving the peak down; the rest is for cost.
_OTHERS, _DOWN = 0.15, 0.6
# Budgets that a strategy other than the search is asked for.
_HALVES = 10


@dataclass(frozen=True, slots=True)
class Lowest(Strategy):
    """``--budget min``: not by name. The problem's budget is the floor: no plan goes below it.

    ``strategy`` makes the plan for the lowest budget; where it is not the search, that is the
    lowest of those that it is asked for by halving.
    """

    name: ClassVar[str] = "lowest"
    summary: ClassVar[str] = "the lowest peak, then the least extra time"
    source: ClassVar[str] = "memplan (docs/how/planner.md)"
    strategy: Strategy

    def solve(
        self, problem: Problem, time_limit: float, progress: Progress | None = None
    ) -> Outcome:
        """The outcome for the least budget at which something was found."""
        begun = time.perf_counter()
        down = self._down(problem, time_limit)
        left = max(0.01, time_limit - (time.perf_counter() - begun))
        outcome = self.strategy.solve(replace(problem, budget=down.peak), left, progress)
        if not outcome.decision.feasible or outcome.decision.extra_cost > down.extra_cost:
            return replace(outcome, decision=down)
        return outcome

    def _halved(self, problem: Problem, time_limit: float) -> Decision:
        """The lowest plan of the strategy itself, for budgets between floor and peak."""
        from memplan.solver.evaluate import decide

        best, low = decide(problem, problem.start), problem.budget
        for _ in range(_HALVES):
            aim = low + (best.peak - low) // 2
            seconds = time_limit / _HALVES
            found = self.strategy.solve(replace(problem, budget=aim), seconds).decision
            if found.peak < best.peak:
                best = found
            if found.peak > aim:
                low = aim
        return best

    def _down(self, problem: Problem, time_limit: float) -> Decision:
        from memplan.solver.bound.milp import Effort
        from memplan.solver.evaluate import decide
        from memplan.solver.search.lowest_peak import lowest_peak
        from memplan.solver.search.params import SearchOptions
        from memplan.solver.strategies.builtin import Search
        from memplan.solver.strategies.published import baseline_decisions

        if not isinstance(self.strategy, Search):
            return self._halved(problem, _DOWN * time_limit)
        started = time.perf_counter()

        def left() -> float:
            return _OTHERS * time_limit - (time.perf_counter() - started)

        counted = self.strategy.iterations
        plans = [decide(problem, problem.start)]
        if not counted:
            plans += [decision for _, decision in baseline_decisions(problem, left)]
        effort = Effort() if counted else Effort(started + _DOWN * time_limit)
        options = SearchOptions(
            order=bool(self.strategy.order), seed=self.strategy.seed, iterations=counted
        )
        begin = min(plans, key=lambda plan: plan.peak)
        return lowest_peak(problem, begin, effort, options, problem.budget)
