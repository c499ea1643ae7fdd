"""Minimum cut: which stashes PyTorch's partitioner would keep.

``min_cut_rematerialization_partition`` in torch/_functorch/partitioners.py (PyTorch 2.x): the cut
of least bytes between what cannot (or should not) be recomputed and what the backward part reads.
What stands there for fusion by its compiler is left out: nothing is fused here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import ClassVar

from memplan.solver.maxflow import Run, cut
from memplan.solver.strategies.keepset import KeepSet, TrainingStep

# A node whose output is this much smaller than its inputs is a reduction: cheap to keep, so never
# recomputed (``ban_if_reduction`` there).
_REDUCTION = 4
# Bytes weigh more with every node between a tensor and the backward part, up to so many
# (``get_node_weight`` there): near ones are preferred.
_FARTHER, _FARTHEST = 1.1, 100


@dataclass(frozen=True, slots=True)
class MinCut(KeepSet):
    """``ban``: 1 not to recompute matrix products, convolutions and reductions (as PyTorch does);
    0 to recompute whatever can be. There is no budget: one plan, that fits or not.
    """

    name: ClassVar[str] = "min-cut"
    summary: ClassVar[str] = "keep the fewest bytes from which backward can go on (PyTorch)"
    words: ClassVar[Mapping[str, tuple[str, ...]]] = {"ban": ("0", "1")}
    source: ClassVar[str] = "PyTorch 2.x: min_cut_rematerialization_partition"
    meanings: ClassVar[Mapping[str, str]] = {
        "ban": "1 never recomputes products and reductions, as PyTorch does",
    }
    ban: int = 1

    def offers(self, step: TrainingStep, late: Callable[[], bool]) -> Iterator[Set[int]]:
        """The one cut there is; nothing if time is over before it is found."""
        graph = StashGraph(step)
        kept = graph.cut(graph.expensive() if self.ban else set(), late)
        if kept is not None:
            yield kept


class StashGraph:
    """Storages from which the stash can be made, by root, and the nodes that do it.

    ``made_by`` are those nodes, views of a storage among them; ``sources`` the storages they read.
    """

    def __init__(self, step: TrainingStep) -> None:
        self.step, self.links = step, step.links
        self.made_by: dict[int, set[int]] = {}
        self.sources: dict[int, set[int]] = {}
        members: dict[int, list[int]] = {}
        for node in step.sequence[: step.cut]:
            for t in self.links.writes[node]:
                members.setdefault(self.links.root[t], []).append(t)
        waiting = list(step.stash)
        while waiting:
            root = waiting.pop()
            if root in self.made_by:
                continue
            # Tensors that only rebuild rules make are no member of a forward storage.
            tensors = members.get(root, [root]) if root not in self.links.fixed else []
            self.made_by[root] = {self.links.maker[t] for t in tensors}
            self.sources[root] = {
                self.links.root[t] for node in self.made_by[root] for t in self.links.reads[node]
            } - {root}
            waiting.extend(self.sources[root])
        self.weight = self._weights()

    def expensive(self) -> set[int]:
        """Nodes that PyTorch would rather not recompute, where they can be."""
        problem, links = self.step.problem, self.links
        found = set()
        for node in set().union(*self.made_by.values()):
            if all(links.root[t] != t for t in links.writes[node]):
                continue  # a view: never in the way of recomputation
            made = sum(links.nbytes[t] for t in links.writes[node])
            span = slice(problem.arrays.read_start[node], problem.arrays.read_start[node + 1])
            taken = int(problem.arrays.nbytes[problem.arrays.reads[span]].sum())
            intensive = problem.intensive is not None and bool(problem.intensive[node])
            if intensive or made * _REDUCTION < taken:
                found.add(node)
        return found

    def cut(self, banned: Set[int], late: Callable[[], bool]) -> set[int] | None:
        """The roots to keep so that no ``banned`` node is recomputed, or None when it got late."""
        found = cut(
            self.weight,
            given=(),
            needed=self.step.stash,
            runs=(
                Run(
                    tuple(self.sources[root]),
                    (root,),
                    root not in self.links.fixed and not made_by & banned,
                )
                for root, made_by in self.made_by.items()
            ),
            late=late,
        )
        return None if found is None else set(found.kept)

    def _weights(self) -> dict[int, int]:
        """Bytes by root, weighed by distance from the backward part; graph outputs are free."""
        distance = dict.fromkeys(self.step.stash, 1)
        queue = list(self.step.stash)
        for root in queue:  # grows while it is walked: breadth first
            for source in self.sources[root]:
                if source not in distance:
                    distance[source] = distance[root] + 1
                    queue.append(source)
        pinned = self.step.problem.arrays.pinned
        return {
            root: 0
            if pinned[root]
            else int(self.links.nbytes[root] * _FARTHER ** min(distance[root], _FARTHEST))
            for root in self.made_by
        }
