"""Baseline planners: what all of them share.

A baseline planner decides as its source does: a set of stashes that are kept, at the boundary
between forward and backward; the rest is recomputed when backward needs it (:class:`KeepSet`). What
it decides is then evaluated like any other sequence, so that costs and peaks can be compared.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass

import numpy as np

from memplan.deadline import Deadline
from memplan.solver.links import Cut, Links, boundary, links_of, sequence_keeping
from memplan.solver.problem import NONE, Decision, Ints, Problem, better
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


class KeepSet(Strategy):
    """A baseline planner: offers sets of storages of the forward part to keep, of which the best
    plan is its answer: the cheapest that fits, else the lowest.

    Where the start fits, nothing is cheaper, so nothing is offered; unless the planner knows no
    budget: then its plan is what it is.
    """

    @abstractmethod
    def offers(self, step: TrainingStep, late: Callable[[], bool]) -> Iterator[Set[int]]:
        """Sets of roots to keep, one after the other; fixed roots are kept anyway.

        ``late`` tells whether the time is over. Between two offers nobody need ask.

        Raises:
            UsageError: nothing can be offered for such a step.
        """

    def solve(
        self, problem: Problem, time_limit: float, progress: Progress | None = None
    ) -> Outcome:
        """The best of the plans that were offered within ``time_limit`` seconds.

        Raises:
            UsageError: the problem does not say which nodes are forward, or nothing can be offered.
        """
        step, deadline = step_of(problem), Deadline(time_limit)
        start = judge(problem, problem.start)
        if start.feasible and not self.ignores_budget:
            return Outcome(start)
        best: Decision | None = None
        tried = set[frozenset[int]]()
        for offer in self.offers(step, lambda: deadline.passed):
            kept = frozenset(offer)
            if kept not in tried:
                tried.add(kept)
                found = judge(problem, step.sequence_for(kept))
                if best is None or better(found, best):
                    best = found
                    if progress is not None and found.feasible:
                        progress(found.peak, found.extra_cost / (problem.base_cost or 1.0))
            if deadline.passed:
                break
        _LOG.debug("%s: %d plans judged", self.name, len(tried))
        return Outcome(best or start)
