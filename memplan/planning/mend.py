"""A plan at hand, carried over to a problem that differs a little, and mended there.

Where a part of a plan is given up (a form of a tensor, a pass, chunks, some bytes of the budget),
most of it still holds: the search goes on from it instead of from nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from memplan.deadline import Deadline
from memplan.ir.graph import Graph
from memplan.solver.problem import NONE, Ints, Problem
from memplan.solver.strategies.builtin import Search
from memplan.solver.strategy import Outcome, Progress, Strategy


def carried_over(at_hand: Sequence[int], graph: Graph, problem: Problem) -> Ints:
    """The nodes ``at_hand`` as a sequence of ``problem``. Those that it has besides run behind the
    node that they follow in its order, as soon as what they read is made, or where something needs
    them before that.

    Args:
        at_hand: nodes in execution order.
        graph: of the problem, nodes of forms included.
        problem: what the sequence is for.
    """
    carrying = _Carrying(graph, problem, frozenset(at_hand))
    for node in at_hand:
        if carrying.early[node]:
            carrying.early[node] -= 1
            continue
        carrying.run_with_sources(node)
    for node in map(int, problem.order):
        if node not in carrying.ran:
            carrying.run_with_sources(node)
    return np.asarray(carrying.result, dtype=np.int64)


class _Carrying:
    """A sequence on the way. ``early``: how often nodes of the plan ran ahead of their turn,
    because a new one needed them."""

    def __init__(self, graph: Graph, problem: Problem, known: frozenset[int]) -> None:
        self.nodes = graph.nodes
        self.maker = problem.arrays.maker
        order = [int(node) for node in problem.order]
        self.place = {node: number for number, node in enumerate(order)}
        self.result: list[int] = []
        self.ran: set[int] = set()
        self.made: set[int] = set()
        self.early: Counter[int] = Counter()
        # A new node waits for the one that it follows and for what it reads.
        self.waits_for: dict[int, int] = {}
        self.behind: defaultdict[int, list[int]] = defaultdict(list)
        self.readers: defaultdict[int, list[int]] = defaultdict(list)
        for before, node in pairwise((NONE, *order)):
            if node in known:
                continue
            reads = {t for t in self.nodes[node].reads if self.maker[t] != NONE}
            self.waits_for[node] = len(reads) + (before != NONE)
            self.behind[before].append(node)
            for tensor in reads:
                self.readers[tensor].append(node)

    def run_with_sources(self, node: int) -> None:
        """``node`` behind what it reads and nothing has made yet, in the problem's order."""
        missing: set[int] = set()
        looking = [node]
        while looking:
            for tensor in self.nodes[looking.pop()].reads:
                source = int(self.maker[tensor])
                if source != NONE and tensor not in self.made and source not in missing:
                    missing.add(source)
                    looking.append(source)
        for source in sorted(missing, key=lambda each: self.place.get(each, len(self.place))):
            if source not in self.ran:
                self._run(source)
                self.early[source] += 1
        self._run(node)

    def _run(self, node: int) -> None:
        """``node``, and the new ones that need not wait any longer."""
        ready = deque([node])
        while ready:
            current = ready.popleft()
            first = current not in self.ran
            if not first and current != node:
                continue
            self.result.append(current)
            self.ran.add(current)
            fresh = [t for t in self.nodes[current].writes if t not in self.made]
            self.made.update(fresh)
            freed = [reader for tensor in fresh for reader in self.readers[tensor]]
            freed += self.behind[current] if first else []
            for each in freed:
                self.waits_for[each] -= 1
                if not self.waits_for[each] and each not in self.ran:
                    ready.append(each)


@dataclass(frozen=True, slots=True)
class Mend(Strategy):
    """Not by name: the search from one sequence, which need not keep the budget."""

    name: ClassVar[str] = "mend"
    summary: ClassVar[str] = "the search from a plan at hand"
    source: ClassVar[str] = "memplan (docs/how/planner.md)"
    takes_forms: ClassVar[bool] = True
    search: Search
    start: Ints

    def solve(
        self, problem: Problem, time_limit: float, progress: Progress | None = None
    ) -> Outcome:
        """The best sequence found from the start, without a bound."""
        from memplan.solver.search.lowest_peak import solve_from
        from memplan.solver.search.params import SearchOptions

        search = self.search
        options = SearchOptions(bool(search.order), seed=search.seed, iterations=search.iterations)
        return Outcome(solve_from(problem, self.start, Deadline(time_limit), options, progress))
