"""A plan at hand, carried over to a problem that differs a little, and mended there.

Where a part of a plan is given up (a form of a tensor, a pass, chunks, some bytes of the budget),
most of it still holds: the search goes on from it instead of from nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from memplan.deadline import Deadline
from memplan.ir.graph import Graph
from memplan.solver.problem import NONE, Ints, Problem
from memplan.solver.strategies.builtin import Search
from memplan.solver.strategy import Outcome, Progress, Strategy


def carried_over(at_hand: Sequence[str], graph: Graph, problem: Problem) -> Ints:
    """The nodes ``at_hand`` as a sequence of ``problem``: those that it lacks are left out, and
    those that it has besides run right before they are needed.

    Args:
        at_hand: names of nodes in execution order.
        graph: of the problem, nodes of forms included.
        problem: what the sequence is for.
    """
    ids = {node.name: node.id for node in graph.nodes}
    maker = problem.arrays.maker
    place = {int(node): number for number, node in enumerate(problem.order)}
    made: set[int] = set()
    ran: set[int] = set()
    result: list[int] = []

    def run(node: int) -> None:
        result.append(node)
        ran.add(node)
        made.update(graph.nodes[node].writes)

    def run_needed(node: int) -> None:
        """What ``node`` reads and nothing has made yet, in the problem's order."""
        missing: set[int] = set()
        waiting = [node]
        while waiting:
            for tensor in graph.nodes[waiting.pop()].reads:
                source = int(maker[tensor])
                if source != NONE and tensor not in made and source not in missing:
                    missing.add(source)
                    waiting.append(source)
        for source in sorted(missing, key=lambda each: place.get(each, len(place))):
            run(source)

    for name in at_hand:
        if name in ids:
            run_needed(ids[name])
            run(ids[name])
    for node in map(int, problem.order):
        if node not in ran:
            run_needed(node)
            run(node)
    return np.asarray(result, dtype=np.int64)


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
