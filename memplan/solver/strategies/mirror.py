"""Backward mirroring, as in MXNet (published as Echo).

``Gradient`` in src/nnvm/gradient.cc of MXNet (Zheng et al., "Echo: Compiler-based GPU Memory
Footprint Reduction for LSTM RNN Training", ISCA 2020). Two passes: the gradient graph without
mirroring says who reads what. Then, from every head (an operator that the mirror function refuses,
the expensive ones), the cheap operators behind it make a subgraph, with all that share an input
with it. From its frontier forward, groups of operators leave the mirror path while the storage that
leaving releases is at least the storage that it allocates. What stays on the path is made again for
the backward part. Where the source walks hash tables, here the order is that of the graph.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from memplan.solver.strategies.keepset import KeepSet, TrainingStep

COST, KIND = "cost", "kind"


@dataclass(frozen=True, slots=True)
class Mirror(KeepSet):
    """``function``: which operators are cheap, by ``cost`` (at most ``times`` the median seconds
    per byte made in the forward part) or by ``kind`` (all but products and convolutions).
    ``test``: 1 for the storage test as published; 0 to mirror whatever is cheap, as MXNet did
    before it.
    """

    name: ClassVar[str] = "mirror"
    summary: ClassVar[str] = "recompute cheap operators where it frees more than it holds (Echo)"
    source: ClassVar[str] = "MXNet: backward mirroring; Zheng et al., ISCA 2020 (Echo)"
    words: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "function": (COST, KIND),
        "test": ("0", "1"),
    }
    ignores_budget: ClassVar[bool] = True
    clone_tags: ClassVar[Mapping[str, str]] = {"memplan.mirror_stage": "1"}
    meanings: ClassVar[Mapping[str, str]] = {
        "function": "what is cheap: by its time per byte, or all but products",
        "times": "with cost: how many times the median time per byte is cheap",
        "test": "0 recomputes whatever is cheap, without the test of storage",
    }
    function: str = COST
    times: int = 4
    test: int = 1

    def offers(self, step: TrainingStep, late: Callable[[], bool]) -> Iterator[Set[int]]:
        """What is not on the mirror path."""
        graph = MirrorGraph(step, cheap_nodes(step, self.function, self.times))
        mirrored = graph.mirrored(bool(self.test))
        links = step.links
        # A view on the path of what is not, or the other way round, keeps the storage.
        yield {
            links.root[t]
            for node in graph.nodes
            if node not in mirrored
            for t in links.writes[node]
        }


def cheap_nodes(step: TrainingStep, function: str, times: int) -> set[int]:
    """Forward nodes that the mirror function accepts; none that must not be recomputed."""
    problem, links = step.problem, step.links
    assert problem.forward is not None  # else step_of has refused
    nodes = [node for node in problem.order.tolist() if problem.forward[node]]
    # What a rebuild rule makes again is not made by running the node again.
    again = [n for n in nodes if all(links.maker[t] == n for t in links.writes[n])]
    if function == KIND:
        intensive = problem.intensive
        return {n for n in again if intensive is None or not intensive[n]}
    made = {n: sum(int(problem.arrays.nbytes[t]) for t in links.writes[n]) for n in nodes}
    paid = {n: links.cost[n] / made[n] for n in nodes if made[n]}
    median = float(np.median(list(paid.values()))) if paid else 0.0
    return {n for n in again if paid.get(n, 0.0) <= times * median}


class MirrorGraph:
    """The forward graph of ``Gradient``, with the readers that the gradient graph adds.

    Node entries are tensors; views are entries as any other. ``heads`` are the forward graph's
    outputs: nodes of which no forward node reads anything.
    """

    def __init__(self, step: TrainingStep, cheap: set[int]) -> None:
        arrays = step.problem.arrays
        forward = step.problem.forward
        assert forward is not None
        self.cheap = cheap
        self.nodes: list[int] = [n for n in step.problem.order.tolist() if forward[n]]
        self.known = set(self.nodes)
        self.nbytes: list[int] = arrays.nbytes.tolist()
        reads, starts = arrays.reads.tolist(), arrays.read_start.tolist()
        order: list[int] = step.problem.order.tolist()
        self.inputs = {n: list(dict.fromkeys(reads[starts[n] : starts[n + 1]])) for n in order}
        self.outputs = {n: step.links.writes[n] for n in order}
        self.made_by = {t: n for n in order for t in self.outputs[n]}
        self.readers: dict[int, list[int]] = {}
        for n in order:
            for t in self.inputs[n]:
                self.readers.setdefault(t, []).append(n)
        self.heads = [n for n in self.nodes if next(iter(self._forward_readers(n)), None) is None]
        # Per node that was decided: whether it is on the mirror path (``mirror_map`` there).
        self.on_path: dict[int, bool] = {}

    def _forward_readers(self, node: int) -> Iterable[int]:
        return (r for t in self.outputs[node] for r in self.readers.get(t, ()) if r in self.known)

    def _sources(self, node: int) -> list[int]:
        """The forward nodes that a node reads from; variables are no nodes here."""
        made = (self.made_by.get(t) for t in self.inputs[node])
        return [n for n in dict.fromkeys(made) if n is not None and n in self.known]

    def mirrored(self, test: bool) -> set[int]:
        """The nodes that stay on the mirror path."""
        waiting = deque(self.heads)
        while waiting:
            head = waiting.popleft()
            if head in self.on_path:
                continue
            subgraph = self.subgraph(head, waiting)
            for node in subgraph:
                if node not in self.cheap:
                    self.on_path[node] = False
            while test and self._leave(subgraph):
                pass
            for node in subgraph:
                self.on_path.setdefault(node, True)
        return {node for node, stays in self.on_path.items() if stays}

    def subgraph(self, head: int, waiting: deque[int]) -> list[int]:
        """``head`` and the cheap nodes behind it, with every branch that reads what they read; in
        order of the graph. Expensive nodes behind it go to ``waiting``: later heads.
        """
        found: set[int] = set()
        work = self._backwards([head], found, waiting)
        while work:
            for tensor in self.inputs[work.pop()]:
                for reader in self.readers[tensor]:
                    if reader in self.known and reader not in found:
                        work += self._backwards(self._heads_above(reader), found, waiting)
        return [node for node in self.nodes if node in found]

    def _backwards(self, heads: list[int], found: set[int], waiting: deque[int]) -> list[int]:
        """Add ``heads`` and all cheap nodes from which they can be reached over cheap nodes; the
        ones that are new."""
        work, new = deque(heads), list[int]()
        while work:
            node = work.popleft()
            if node in found:
                continue
            found.add(node)
            new.append(node)
            for source in self._sources(node):
                (work if source in self.cheap else waiting).append(source)
        return new

    def _heads_above(self, node: int) -> list[int]:
        """The expensive nodes and graph outputs to which cheap nodes lead from ``node``."""
        heads: list[int] = []
        ends, seen = set(self.heads), {node}
        work = deque([node])
        while work:
            now = work.popleft()
            if now not in self.cheap or now in ends:
                heads.append(now)
                continue
            for reader in self._forward_readers(now):
                if reader not in seen:
                    seen.add(reader)
                    work.append(reader)
        return heads

    def frontier(self, subgraph: list[int]) -> list[int]:
        """Undecided cheap nodes whose inputs are all off the path, or made by expensive nodes."""
        return [
            node
            for node in subgraph
            if node in self.cheap
            and node not in self.on_path
            and all(
                source not in self.cheap or self.on_path.get(source) is False
                for source in self._sources(node)
            )
        ]

    def _leave(self, subgraph: list[int]) -> bool:
        """Take the first group off the path that may leave it; whether there was one."""
        frontier = self.frontier(subgraph)
        edge, done = set(frontier), set[int]()
        for node in frontier:
            if node in done:
                continue
            group = self.group(node, edge)
            done |= group
            allocated, released = self.storage(group, edge)
            if released >= allocated:
                self.on_path.update(dict.fromkeys(group, False))
                return True
        return False

    def group(self, node: int, edge: set[int]) -> set[int]:
        """``node`` with the nodes of the frontier that share inputs, directly or by others."""
        group, work = {node}, [node]
        while work:
            for tensor in self.inputs[work.pop()]:
                for reader in self.readers[tensor]:
                    if reader in edge and reader not in group:
                        group.add(reader)
                        work.append(reader)
        return group

    def storage(self, group: set[int], edge: set[int]) -> tuple[int, int]:
        """Bytes that are newly allocated if the group leaves the path, and that are released.

        Allocated: outputs that anybody reads, and inputs that others than the frontier read.
        Released: the other inputs.
        """
        allocated, released = set[int](), set[int]()
        for node in group:
            allocated.update(t for t in self.outputs[node] if self.readers.get(t))
            for tensor in self.inputs[node]:
                free = all(reader in edge for reader in self.readers[tensor])
                (released if free else allocated).add(tensor)
        return sum(self.nbytes[t] for t in allocated), sum(self.nbytes[t] for t in released)
