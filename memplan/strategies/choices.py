"""Several ways to make a tensor again: a search for each, then mixes.

A problem names one maker for every tensor. Where a tensor can be recomputed or read back from the
host, each assignment of makers is a problem of its own; but all have the same sequences, whose
peaks and costs do not depend on it, and one lower bound: the relaxation takes every maker that some
tensor has (:mod:`memplan.solver.bound.relaxation`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from memplan.solver.problem import Decision, Ints, Problem, better
from memplan.solver.strategy import Outcome, Progress, Strategy
from memplan.strategies.builtin import Search
from memplan.strategies.checked import checked

# Shares of the time: for the problem without choices, and for the first one; the rest is for a look
# at each of the others, and for searches with them from the best plan.
_PLAIN, _FIRST = 0.35, 0.25


@dataclass(frozen=True, slots=True)
class Choice:
    """An assignment: ``makers`` as ``Arrays.maker``, and the nodes that must have run for them.

    Each of these stands right behind the node to which ``behind`` maps it; the problem's own order
    has none of them. ``idle``: such nodes of other choices.
    """

    makers: Ints
    behind: Mapping[int, int]
    idle: frozenset[int]

    def of(self, problem: Problem) -> Problem:
        """The problem with these makers, whose order has the nodes that they need.

        What is idle reads nothing: the relaxation would let go of all that it reads.
        """
        arrays = problem.arrays._replace(maker=self.makers)
        counts = np.diff(arrays.read_start)
        idle = np.isin(np.arange(len(counts)), list(self.idle))
        kept = np.repeat(~idle, counts)
        starts = np.concatenate(([0], np.cumsum(np.where(idle, 0, counts))))
        return replace(
            problem,
            arrays=arrays._replace(reads=arrays.reads[kept], read_start=starts),
            order=self.completed(problem.order),
            start=self.completed(problem.start),
        )

    def completed(self, sequence: Ints) -> Ints:
        """``sequence`` with the nodes that are missing, behind the first run of the others."""
        there = set(sequence.tolist())
        missing: dict[int, list[int]] = {}
        for node, first in self.behind.items():
            if node not in there:
                missing.setdefault(first, []).append(node)
        found: list[int] = []
        for node in sequence.tolist():
            found += (node, *missing.pop(node, ()))
        return np.asarray(found, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Choices(Strategy):
    """Not by name. ``strategy`` is asked for every one of ``choices``, and the best plan wins.

    ``plain`` is the problem without any of their nodes, whose ids are the first: with choices no
    plan is worse than without. Where ``strategy`` is the search, it takes its time for that and for
    the first choice, whose bound is for them all, looks at the others, and goes on from the best
    plan with them, so that a plan may mix them. Every choice has the nodes of those before it.
    """

    name: ClassVar[str] = "choices"
    summary: ClassVar[str] = "every assignment of makers, then mixes"
    source: ClassVar[str] = "memplan (docs/how/offload.md)"
    strategy: Strategy
    choices: tuple[Choice, ...]
    plain: Problem

    def solve(
        self, problem: Problem, time_limit: float, progress: Progress | None = None
    ) -> Outcome:
        """The best outcome, with a bound for all assignments."""
        search, rest = self.strategy, self.choices[1:]
        plain = replace(self.plain, budget=problem.budget)
        if not isinstance(search, Search):
            seconds = time_limit / (1 + len(self.choices))
            every = [plain, *(each.of(problem) for each in self.choices)]
            return _best([checked(search, each, seconds, progress) for each in every])
        alone = checked(search, plain, _PLAIN * time_limit, progress)
        first = checked(search, self.choices[0].of(problem), _FIRST * time_limit, progress)
        seconds = (1 - _PLAIN - _FIRST) * time_limit / max(1, 2 * len(rest))
        look = replace(search, certify=0)
        looks = [checked(look, each.of(problem), seconds, progress) for each in rest]
        decision, bound = _best([alone, first, *looks]).decision, first.bound_seconds
        for choice in rest:
            if decision.extra_cost <= bound + search.gap / 100 * problem.base_cost:
                break
            decision = _mixed(search, choice, problem, decision, seconds, progress)
        if decision.feasible:
            bound = min(bound, decision.extra_cost)
        return Outcome(decision, bound, first.bound_kind)


def _mixed(
    search: Search,
    choice: Choice,
    problem: Problem,
    start: Decision,
    seconds: float,
    progress: Progress | None,
) -> Decision:
    """The better of ``start`` and what a search with another choice finds from it."""
    from memplan.solver.search.lowest_peak import solve_from
    from memplan.solver.search.params import SearchOptions

    options = SearchOptions(
        order=bool(search.order), seed=search.seed, iterations=search.iterations
    )
    begin = choice.completed(start.sequence)
    found = solve_from(choice.of(problem), begin, seconds, options, progress)
    return found if better(found, start) else start


def _best(outcomes: Sequence[Outcome]) -> Outcome:
    return min(outcomes, key=lambda outcome: _key(outcome.decision))


def _key(decision: Decision) -> tuple[int, float]:
    """Plans that fit first, by cost; the others by peak, then cost."""
    return 0 if decision.feasible else decision.peak, decision.extra_cost
