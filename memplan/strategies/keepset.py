"""From a set of stashes that are kept to a sequence: the rest is recomputed when backward needs it.

Chen's segments, the knapsack and the minimum cut all decide only this set, at the boundary between
forward and backward.
"""

from __future__ import annotations

import time
from collections.abc import Set
from dataclasses import dataclass

import numpy as np

from memplan.solver.problem import NONE, Decision, Ints, Problem
from memplan.solver.strategy import Progress
from memplan.strategies.links import Links, boundary, links_of


@dataclass(frozen=True, slots=True)
class Step:
    """A training step, cut where its forward part ends.

    ``stash``: roots of storages that are made before ``cut`` and read behind it, in order of birth.
    """

    problem: Problem
    links: Links
    sequence: list[int]  # problem.start
    cut: int
    stash: list[int]

    def sequence_for(self, kept: Set[int]) -> Ints:
        """The sequence in which of the forward storages only ``kept`` and fixed roots survive.

        What is dropped runs again right before its first reader in the backward part, together
        with whatever that needs, in the original order; from then on it stays until its last
        reader (as in Chen et al. 2016, section 3, and in PyTorch's partitioners).
        """
        links, rank = self.links, self.problem.arrays.rank
        there = bytearray(len(links.maker))
        for node in self.sequence[: self.cut]:
            for t in links.writes[node]:
                there[t] = links.root[t] in kept or links.root[t] in links.fixed
        result = self.sequence[: self.cut]
        for node in self.sequence[self.cut :]:
            missing = [t for t in links.reads[node] if not there[t]]
            if missing:
                for clone in sorted(_closure(links, there, missing), key=rank.__getitem__):
                    result.append(clone)
                    for t in links.writes[clone]:
                        there[t] = 1
            result.append(node)
            for t in links.writes[node]:
                there[t] = 1
        return np.asarray(result, dtype=np.int64)


def step_of(problem: Problem) -> Step:
    """The problem's start, cut at the end of its forward part.

    Raises:
        UsageError: the problem does not say which nodes are forward.
    """
    links, cut = links_of(problem), boundary(problem)
    sequence: list[int] = problem.start.tolist()
    made = {links.root[t]: None for node in sequence[:cut] for t in links.writes[node]}
    read = {links.root[t] for node in sequence[cut:] for t in links.reads[node]}
    return Step(problem, links, sequence, cut, [r for r in made if r in read])


def _closure(links: Links, there: bytearray, missing: list[int]) -> set[int]:
    """The nodes that make ``missing`` from what is there."""
    nodes: set[int] = set()
    waiting = list(missing)
    while waiting:
        node = links.maker[waiting.pop()]
        if node not in nodes:
            nodes.add(node)
            waiting.extend(t for t in links.reads[node] if not there[t])
    return nodes


def judge(problem: Problem, sequence: Ints) -> Decision:
    """The decision for a sequence, by our evaluator: its true peak, whatever the peer believed."""
    # numba is slow to import: only when there is something to plan.
    from memplan.solver.evaluate import decide
    from memplan.solver.order.local import settle

    return decide(problem, settle(problem.arrays, without_unread(problem, sequence)))


def without_unread(problem: Problem, sequence: Ints) -> Ints:
    """``sequence`` without runs that another run of the same node makes useless.

    The runtime holds what nobody reads to the end. A peer that drops a stash, or evicts what it has
    just made, would not want that: in its own system such a run is never written. First runs of
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
        self.deadline = time.perf_counter() + time_limit
        self.start = judge(problem, problem.start)
        self.found: Decision | None = None

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return time.perf_counter() > self.deadline

    @property
    def best(self) -> Decision:
        """The start if it fits (nothing is cheaper) or if there is nothing else."""
        return self.start if self.start.feasible or self.found is None else self.found

    def offer(self, sequence: Ints) -> Decision:
        """Judge one more plan."""
        decision = judge(self.problem, sequence)
        if self.found is None or _key(decision) < _key(self.found):
            self.found = decision
            if self.progress is not None and decision.feasible:
                self.progress(decision.peak, decision.extra_cost / (self.problem.base_cost or 1.0))
        return decision


def _key(decision: Decision) -> tuple[bool, float]:
    return not decision.feasible, decision.extra_cost if decision.feasible else decision.peak
