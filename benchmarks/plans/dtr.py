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

from benchmarks.plans.dtr_machine import GivenUp, Machine, Neighbours
from memplan.solver.links import links_of
from memplan.solver.strategies.keepset import Baseline, Contest

# Runs with other budgets of its own, since its accounting differs from the runtime's.
_TRIES = 8
# After a run that did not come to its end, the next one gets so much more (a share).
_MORE = 1.1


@dataclass(frozen=True, slots=True)
class Dtr(Baseline):
    """``heuristic``: h_eq counts the cost of evicted neighbours, by classes that are only ever
    merged; h_local the storage's own cost.

    Its own accounting knows views, in-place outputs and workspace, but not that the runtime gives
    back what nobody will read. So it runs several times, each time with the budget moved by what
    the evaluated peak was off: to its advantage.
    """

    name: ClassVar[str] = "dtr"
    summary: ClassVar[str] = "evict by staleness, size and cost when memory runs out (DTR, 2021)"
    source: ClassVar[str] = "Kirisame et al.: Dynamic Tensor Rematerialization (ICLR 2021)"
    words: ClassVar[Mapping[str, tuple[str, ...]]] = {"heuristic": ("h_eq", "h_local")}
    meanings: ClassVar[Mapping[str, str]] = {
        "heuristic": "h_eq counts what evicted neighbours cost, h_local only itself",
    }
    heuristic: str = "h_eq"

    def compete(self, contest: Contest) -> None:
        """A few runs; none where none ended within the time."""
        problem = contest.problem
        links = links_of(problem)
        neighbours = Neighbours.of(links) if self.heuristic == "h_eq" else None
        budget, stuck, over = problem.budget, 0, 0
        for _ in range(_TRIES):
            try:
                sequence = Machine(problem, links, budget, neighbours, contest.deadline).run()
                slack = problem.budget - contest.offer(sequence).peak
                over = over if slack >= 0 else budget
                following = budget + slack
            except GivenUp:
                slack, stuck, following = 1, max(stuck, budget), int(budget * _MORE) + 1
            # Between a run that got stuck and one that took too much: halve what is left.
            if following <= stuck:
                following = (stuck + budget) // 2
            if over and following >= over:
                following = (budget + over) // 2
            if slack == 0 or following == budget or contest.late:
                break
            budget = following
