"""Baseline planners: what all of them share.

A baseline planner decides as its source does; what it decides is then evaluated like any other
sequence, so that costs and peaks can be compared (:class:`Baseline`). Most of them decide only a
set of stashes that are kept, at the boundary between forward and backward; the rest is recomputed
when backward needs it (:class:`KeepSet`).
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from memplan.deadline import Deadline
from memplan.solver.links import Cut, Links, boundary, links_of, sequence_keeping
from memplan.solver.problem import NONE, Decision, Ints, Problem
from memplan.solver.strategy import Outcome, Progress, Strategy

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """A training step, cut where its forward part ends.

    ``stash``: roots of storages that are made before ``cut`` and read behind it, in order of birth.
    """

    problem: Problem
    links: Links
    sequence: list[int]  # problem.start
    cut: int
    stash: list[int]

    def sequence_for(self, kept: Set[int]) -> Ints:
        """The sequence in which of the forward storages only ``kept`` and fixed roots survive
        (:func:`memplan.solver.links.sequence_keeping`)."""
        rank = self.problem.arrays.rank
        return sequence_keeping(self.links, rank, self.sequence, (Cut(self.cut, kept),))


def step_of(problem: Problem) -> TrainingStep:
    """The problem's start, cut at the end of its forward part.

    Raises:
        UsageError: the problem does not say which nodes are forward.
    """
    links, cut = links_of(problem), boundary(problem)
    sequence: list[int] = problem.start.tolist()
    made = {links.root[t]: None for node in sequence[:cut] for t in links.writes[node]}
    read = {links.root[t] for node in sequence[cut:] for t in links.reads[node]}
    return TrainingStep(problem, links, sequence, cut, [r for r in made if r in read])


def judge(problem: Problem, sequence: Ints) -> Decision:
    """The decision for a sequence, by our evaluator: its true peak, not what a planner believed."""
    # numba is slow to import: only when there is something to plan.
    from memplan.solver.evaluate import decide
    from memplan.solver.order.local import settle

    return decide(problem, settle(problem.arrays, without_unread(problem, sequence)))


def without_unread(problem: Problem, sequence: Ints) -> Ints:
    """``sequence`` without runs that another run of the same node makes useless.

    The runtime holds what nobody reads to the end. A planner that drops a stash, or evicts what it
    has just made, would not want that: in its own system such a run is never written. First runs of
    nodes that must not move stay, and so does what was asked for (protected nodes).
    """
    from memplan.solver.evaluate import evaluate

    profile = evaluate(problem.arrays, sequence)
    values, slots = profile.value_start.tolist(), profile.slot_start.tolist()
    reads, read = profile.value_reads.tolist(), profile.slot_value.tolist()
    nodes: list[int] = sequence.tolist()
    runs = np.bincount(sequence, minlength=len(problem.arrays.cost)).tolist()
    first = {node: p for p, node in reversed(list(enumerate(nodes)))}
    kept = np.ones(len(nodes), np.bool_)
    # Readers stand behind what they read, so one pass from the end takes out whole chains.
    for p in range(len(nodes) - 1, -1, -1):
        node = nodes[p]
        if runs[node] == 1 or problem.protected[node] or any(reads[values[p] : values[p + 1]]):
            continue
        if first[node] == p and not problem.movable[node]:
            continue
        kept[p] = False
        runs[node] -= 1
        for v in read[slots[p] : slots[p + 1]]:
            if v != NONE:
                reads[v] -= 1
    return sequence[kept]


class Contest:
    """The best of several plans: the cheapest that fits, else the lowest. Keeps the time limit."""

    def __init__(self, problem: Problem, time_limit: float, progress: Progress | None) -> None:
        self.problem, self.progress = problem, progress
        self.deadline = Deadline(time_limit)
        self.found: Decision | None = None
        self.judged = 0

    @cached_property
    def start(self) -> Decision:
        """The decision to recompute nothing more than was asked for."""
        return judge(self.problem, self.problem.start)

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return self.deadline.passed

    @property
    def best(self) -> Decision:
        """The best plan that was offered; the start if there was none."""
        return self.start if self.found is None else self.found

    def offer(self, sequence: Ints) -> Decision:
        """Judge one more plan."""
        decision = judge(self.problem, sequence)
        self.judged += 1
        if self.found is None or _key(decision) < _key(self.found):
            self.found = decision
            if self.progress is not None and decision.feasible:
                self.progress(decision.peak, decision.extra_cost / (self.problem.base_cost or 1.0))
        return decision


class Baseline(Strategy):
    """A baseline planner: offers plans, the best of which is its answer.

    Where the start fits, nothing is cheaper, so nothing is offered; unless the planner knows no
    budget: then its plan is what it is.
    """

    @abstractmethod
    def compete(self, contest: Contest) -> None:
        """Offer plans until ideas or time are over.

        Raises:
            UsageError: the planner cannot work on such a problem.
        """

    def solve(
        self, problem: Problem, time_limit: float, progress: Progress | None = None
    ) -> Outcome:
        """The best of the plans that were offered within ``time_limit`` seconds.

        Raises:
            UsageError: the planner cannot work on such a problem.
        """
        contest = Contest(problem, time_limit, progress)
        if self.ignores_budget or not contest.start.feasible:
            self.compete(contest)
        best = contest.best
        _LOG.debug(
            "%s: %d plans judged, %s with +%.3f%% at %d B",
            self.name,
            contest.judged,
            "one fits" if best.feasible else "none fits",
            100 * best.extra_cost / (problem.base_cost or 1.0),
            best.peak,
        )
        return Outcome(best)


class KeepSet(Baseline):
    """A baseline planner that only decides which storages of the forward part are kept."""

    @abstractmethod
    def offers(self, step: TrainingStep, late: Callable[[], bool]) -> Iterator[Set[int]]:
        """Sets of roots to keep, one after the other; fixed roots are kept anyway.

        ``late`` tells whether the time is over. Between two offers nobody need ask.

        Raises:
            UsageError: nothing can be offered for such a step.
        """

    def compete(self, contest: Contest) -> None:
        """Judge every set that is offered once."""
        step, tried = step_of(contest.problem), set[frozenset[int]]()
        for offer in self.offers(step, lambda: contest.late):
            kept = frozenset(offer)
            if kept not in tried:
                tried.add(kept)
                contest.offer(step.sequence_for(kept))
            if contest.late:
                return

    def solve(
        self, problem: Problem, time_limit: float, progress: Progress | None = None
    ) -> Outcome:
        """The best of the plans that were offered within ``time_limit`` seconds.

        Raises:
            UsageError: the problem does not say which nodes are forward, or nothing can be offered.
        """
        boundary(problem)  # refuses whatever the budget is
        return super().solve(problem, time_limit, progress)


def _key(decision: Decision) -> tuple[bool, float]:
    return not decision.feasible, decision.extra_cost if decision.feasible else decision.peak
