"""The lowest peak that any plan reaches, then the cheapest plan that does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from memplan.deadline import Deadline
from memplan.solver.problem import Decision, Problem
from memplan.solver.strategies.segments import Segments
from memplan.solver.strategy import Outcome, Progress, Strategy

if TYPE_CHECKING:
    from memplan.solver.bound.milp import Effort
    from memplan.solver.search.params import SearchOptions

# Share of the time for driving the peak down; the rest is for cost.
_DOWN = 0.6
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
        deadline = Deadline(time_limit)
        down = self._down(problem, deadline.share(_DOWN))
        left = max(0.01, deadline.left)
        aimed = replace(problem, budget=down.peak, known=(down.sequence,))
        outcome = self.strategy.solve(aimed, left, progress)
        if not outcome.decision.feasible or outcome.decision.extra_cost > down.extra_cost:
            return replace(outcome, decision=down)
        return outcome

    def _down(self, problem: Problem, deadline: Deadline) -> Decision:
        """A plan with the lowest peak that was found."""
        from memplan.solver.bound.milp import Effort
        from memplan.solver.evaluate import decide
        from memplan.solver.search.params import SearchOptions
        from memplan.solver.strategies.builtin import Search

        search = self.strategy
        if not isinstance(search, Search):
            return self._halved(problem, deadline.seconds / _HALVES)
        effort = Effort() if search.iterations else Effort(deadline)
        options = SearchOptions(bool(search.order), search.seed, search.iterations)
        every = (decide(problem, each) for each in (problem.start, *problem.known))
        begin = min(every, key=lambda decision: decision.peak)
        return lowest_plan(problem, begin, effort, options, problem.budget)

    def _halved(self, problem: Problem, seconds: float) -> Decision:
        """The lowest plan of the strategy itself, for budgets between floor and peak, ``seconds``
        for each."""
        from memplan.solver.evaluate import decide

        best, low = decide(problem, problem.start), problem.budget
        for _ in range(_HALVES):
            aim = low + (best.peak - low) // 2
            found = self.strategy.solve(replace(problem, budget=aim), seconds).decision
            if found.peak < best.peak:
                best = found
            if found.peak > aim:
                low = aim
        return best


def lowest_plan(
    problem: Problem, begin: Decision, effort: Effort, options: SearchOptions, floor: int = 0
) -> Decision:
    """The lower of what is reached from ``begin`` and from the plan that keeps what crosses segment
    boundaries: on recurrent networks, and where masks fill the memory, the second leads lower.

    Arguments as of :func:`memplan.solver.search.lowest_peak.lowest_peak`.
    """
    from memplan.solver.evaluate import decide
    from memplan.solver.forms import without_forms
    from memplan.solver.search.lowest_peak import lowest_peak

    found = lowest_peak(problem, begin, effort.share(0.5), options, floor)
    forward = problem.forward
    if effort.over() or found.peak <= floor or forward is None or not forward[problem.order].any():
        return found
    kept = Segments().solve(without_forms(problem), effort.deadline.left).decision
    start = decide(problem, kept.sequence)
    other = lowest_peak(problem, start, effort, options, floor)
    return min(found, other, key=lambda decision: decision.peak)
