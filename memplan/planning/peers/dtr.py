"""DTR: dynamic tensor rematerialization, run offline.

Kirisame, Lyubomirsky, Haan, Brennan, He, Roesch, Chen and Tatlock, 'Dynamic Tensor
Rematerialization' (ICLR 2021): operators run in program order; when memory runs out, storages are
evicted by a heuristic of cost, size and staleness, and what is gone is made again when something
reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from memplan.planning.outcome import Outcome, Progress
from memplan.planning.peers.dtr_run import GivenUp, Machine, Neighbours
from memplan.planning.peers.keepset import Contest
from memplan.planning.peers.links import links_of
from memplan.planning.problem import Problem

# Runs with other budgets of its own, since its accounting differs from the runtime's.
_TRIES = 6
# A run that has not fitted at all is tried again with so much more (a share).
_MORE = 1.05


@dataclass(frozen=True, slots=True)
class Dtr:
    """``heuristic``: h_eq counts the cost of evicted neighbours, by classes that are only ever
    merged; h_local the storage's own cost.

    Its own accounting knows views, in-place outputs and workspace, but not that the runtime gives
    back what nobody will read. So it runs several times, each time with the budget moved by what
    the evaluated peak was off: to its advantage.
    """

    name: ClassVar[str] = "dtr"
    summary: ClassVar[str] = "evict by staleness, size and cost when memory runs out (DTR, 2021)"
    words: ClassVar[Mapping[str, tuple[str, ...]]] = {"heuristic": ("h_eq", "h_local")}
    heuristic: str = "h_eq"

    def solve(
        self, problem: Problem, time_limit: float, progress: Progress | None = None
    ) -> Outcome:
        """The best of a few runs; the start where none ended within ``time_limit`` seconds."""
        contest = Contest(problem, time_limit, progress)
        if contest.start.feasible:
            return Outcome(contest.start)
        links = links_of(problem)
        neighbours = Neighbours.of(links) if self.heuristic == "h_eq" else None
        budget, tried = problem.budget, set[int]()
        while len(tried) < _TRIES and 0 < budget not in tried and not contest.late:
            tried.add(budget)
            try:
                sequence = Machine(problem, links, budget, neighbours, contest.deadline).run()
            except GivenUp:
                budget = int(budget * _MORE) + 1
                continue
            budget += problem.budget - contest.offer(sequence).peak
        return Outcome(contest.best)
