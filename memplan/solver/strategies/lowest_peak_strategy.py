"""The lowest peak that any plan reaches, then the cheapest plan that does."""

from __future__ import annotations

from collections.abc import Sequence
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
RESTARTS = 12
"""Restarts with noise for an aim after which nothing more is to be expected."""


@dataclass(frozen=True, slots=True)
class Lowest(Strategy):
    """``--budget min``: not by name. The problem's budget is the floor: no plan goes below it.

    ``strategy`` makes the plan for the lowest budget; where it is not the search, that is the
    lowest of those that it is asked for by halving. ``seconds``: of which the peak has its share,
    where a limit may cut them short (0: the limit): so what is reached by then does not depend on
    the limit.
    """

    name: ClassVar[str] = "lowest"
    summary: ClassVar[str] = "the lowest peak, then the least extra time"
    source: ClassVar[str] = "memplan (docs/how/planner.md)"
    strategy: Strategy
    seconds: float = 0.0

    def solve(
        self, problem: Problem, time_limit: float, progress: Progress | None = None
    ) -> Outcome:
        """The outcome for the least budget at which something was found."""
        deadline = Deadline(time_limit)
        share = _DOWN * (self.seconds or time_limit)
        down = self.down(problem, deadline.share(most=share))
        left = max(0.01, deadline.left)
        aimed = replace(problem, budget=down.peak, known=(down.sequence,))
        outcome = self.strategy.solve(aimed, left, progress)
        if not outcome.decision.feasible or outcome.decision.extra_cost > down.extra_cost:
            return replace(outcome, decision=down)
        return outcome

    def down(self, problem: Problem, deadline: Deadline) -> Decision:
        """A plan with the lowest peak that was found."""
        from memplan.solver.bound.milp import Effort
        from memplan.solver.evaluate import decide
        from memplan.solver.search.params import SearchOptions
        from memplan.solver.strategies.builtin import Search

        search = self.strategy
        if not isinstance(search, Search):
            return self._halved(problem, deadline)
        every = (decide(problem, each) for each in (problem.start, *problem.known))
        begin = min(every, key=lambda decision: decision.peak)
        if search.iterations:
            deadline = Deadline()
        found = valleys(problem, begin, deadline.left) if not problem.known else [begin]
        turn = 0
        while True:
            rounds = min(search.iterations or 1 << turn, RESTARTS)
            options = SearchOptions(bool(search.order), search.seed + turn, rounds)
            before = [each.peak for each in found]
            found = driven_down(problem, found, Effort(deadline), options, problem.budget)
            idle = [each.peak for each in found] == before and rounds >= RESTARTS
            if search.iterations or idle or deadline.passed:
                return min(found, key=lambda decision: decision.peak)
            turn += 1

    def _halved(self, problem: Problem, deadline: Deadline) -> Decision:
        """The lowest plan of the strategy itself, for budgets between floor and peak."""
        from memplan.solver.evaluate import decide

        best, low = decide(problem, problem.start), problem.budget
        for _ in range(_HALVES):
            aim = low + (best.peak - low) // 2
            found = self.strategy.solve(replace(problem, budget=aim), deadline.left).decision
            if found.peak < best.peak:
                best = found
            if found.peak > aim:
                low = aim
        return best


def valleys(problem: Problem, begin: Decision, seconds: float) -> list[Decision]:
    """Plans to drive the peak down from, the lowest first: ``begin``, and the one that keeps what
    crosses segment boundaries, looked for in so many seconds: on recurrent networks, and where
    masks fill the memory, it leads lower."""
    from memplan.solver.evaluate import decide
    from memplan.solver.forms import without_forms

    forward = problem.forward
    if forward is None or not forward[problem.order].any():
        return [begin]
    kept = Segments().solve(without_forms(problem), seconds).decision
    return sorted((begin, decide(problem, kept.sequence)), key=lambda each: each.peak)


def driven_down(
    problem: Problem,
    begins: Sequence[Decision],
    effort: Effort,
    options: SearchOptions,
    floor: int = 0,
) -> list[Decision]:
    """What is reached from each of these plans: see
    :func:`memplan.solver.search.lowest_peak.lowest_peak`. Where one is at the floor, or time is
    over, the others stay as they are."""
    from memplan.solver.search.lowest_peak import lowest_peak

    found = list(begins)
    for place, begin in enumerate(begins):
        if effort.over() or min(each.peak for each in found) <= floor:
            break
        found[place] = lowest_peak(problem, begin, effort, options, floor)
    return found
