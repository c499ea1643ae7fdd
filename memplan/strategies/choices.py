"""Several ways to make a tensor again: searches for each, the best one in full, then mixes.

A problem names one maker for every tensor. Where a tensor can be recomputed or read back from the
host, each assignment of makers is a problem of its own; but all have the same sequences, whose
peaks and costs do not depend on it, and one lower bound: the relaxation takes every maker that some
tensor has (:mod:`memplan.solver.bound.relaxation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from memplan.solver.problem import Decision, Ints, Problem, better
from memplan.solver.strategy import Outcome, Progress, Strategy
from memplan.strategies.builtin import Search
from memplan.strategies.checked import checked

# Shares of the time: for a look at every assignment, and for the best one in full; the rest is for
# searches with the others from the best plan.
_LOOKS, _FULL = 0.3, 0.4


@dataclass(frozen=True, slots=True)
class Choices(Strategy):
    """Not by name. ``strategy`` is asked for each of ``makers`` (``Arrays.maker``), and the best
    plan wins. Where it is the search, it looks at each, takes its time for the best of them, and
    goes on from the best plan with the others, so that a plan may mix them."""

    name: ClassVar[str] = "choices"
    summary: ClassVar[str] = "every assignment of makers, then mixes"
    source: ClassVar[str] = "memplan (docs/how/offload.md)"
    strategy: Strategy
    makers: tuple[Ints, ...]

    def solve(
        self, problem: Problem, time_limit: float, progress: Progress | None = None
    ) -> Outcome:
        """The best outcome, with a bound for all assignments."""
        problems = [_made_by(problem, makers) for makers in self.makers]
        search = self.strategy
        if not isinstance(search, Search):
            seconds = time_limit / len(problems)
            return _best([checked(search, each, seconds, progress) for each in problems])
        seconds = _LOOKS * time_limit / len(problems)
        look = replace(search, certify=0)
        looks = [checked(look, each, seconds, progress) for each in problems]
        chosen = min(range(len(looks)), key=lambda k: _key(looks[k].decision))
        full = checked(search, problems[chosen], _FULL * time_limit, progress)
        bound, decision = full.bound_seconds, _best([*looks, full]).decision
        others = [each for k, each in enumerate(problems) if k != chosen]
        seconds = (1 - _LOOKS - _FULL) * time_limit / max(1, len(others))
        for other in others:
            if decision.extra_cost <= bound + search.gap / 100 * problem.base_cost:
                break
            decision = _mixed(search, other, decision, seconds, progress)
        if decision.feasible:
            bound = min(bound, decision.extra_cost)
        return Outcome(decision, bound, full.bound_kind)


def _mixed(
    search: Search, problem: Problem, start: Decision, seconds: float, progress: Progress | None
) -> Decision:
    """The better of ``start`` and what a search with other makers finds from it."""
    from memplan.solver.search.lowest_peak import solve_from
    from memplan.solver.search.params import SearchOptions

    options = SearchOptions(
        order=bool(search.order), seed=search.seed, iterations=search.iterations
    )
    found = solve_from(problem, start.sequence, seconds, options, progress)
    return found if better(found, start) else start


def _made_by(problem: Problem, makers: Ints) -> Problem:
    return replace(problem, arrays=problem.arrays._replace(maker=makers))


def _best(outcomes: Sequence[Outcome]) -> Outcome:
    return min(outcomes, key=lambda outcome: _key(outcome.decision))


def _key(decision: Decision) -> tuple[int, float]:
    """Plans that fit first, by cost; the others by peak, then cost."""
    return 0 if decision.feasible else decision.peak, decision.extra_cost
