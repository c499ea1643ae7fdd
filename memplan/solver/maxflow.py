"""Maximum flow and minimum cut: Dinic's algorithm, for whole-number capacities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K")


class Network:
    """A directed network of numbered vertices, 0 the source and 1 the sink.

    Dinic, 'Algorithm for solution of a problem of maximum flow in networks with power estimation'
    (1970): phases of shortest augmenting paths. Edge ``e`` and its reverse are ``e`` and ``e ^ 1``.
    """

    def __init__(self, vertices: int) -> None:
        self.edges: list[list[int]] = [[] for _ in range(vertices)]
        self.target: list[int] = []
        self.left: list[int] = []  # residual capacity

    def connect(self, source: int, target: int, capacity: int) -> None:
        """Add an edge."""
        for begin, end, room in ((source, target, capacity), (target, source, 0)):
            self.edges[begin].append(len(self.target))
            self.target.append(end)
            self.left.append(room)

    def saturate(self, late: Callable[[], bool] = lambda: False) -> int | None:
        """Push as much flow as fits from source to sink; its amount, or None when it got late."""
        flow = 0
        while True:
            level = self._levels()
            if level[1] < 0:
                return flow
            place = [0] * len(self.edges)
            while pushed := self._augment(level, place):
                flow += pushed
                if late():
                    return None

    def source_side(self) -> set[int]:
        """Vertices that residual capacity still leads to; after :meth:`saturate` a minimum cut."""
        return {vertex for vertex, level in enumerate(self._levels()) if level >= 0}

    def _levels(self) -> list[int]:
        """Distance from the source in residual edges, -1 where none leads."""
        level = [-1] * len(self.edges)
        level[0] = 0
        queue = [0]
        for vertex in queue:  # grows while it is walked
            for edge in self.edges[vertex]:
                end = self.target[edge]
                if self.left[edge] > 0 and level[end] < 0:
                    level[end] = level[vertex] + 1
                    queue.append(end)
        return level

    def _augment(self, level: list[int], place: list[int]) -> int:
        """One path to the sink by rising levels; ``place`` remembers where each vertex stands."""
        path: list[int] = []
        vertex = 0
        while vertex != 1:
            edges = self.edges[vertex]
            while place[vertex] < len(edges):
                edge = edges[place[vertex]]
                if self.left[edge] > 0 and level[self.target[edge]] == level[vertex] + 1:
                    path.append(edge)
                    vertex = self.target[edge]
                    break
                place[vertex] += 1
            else:
                if not path:
                    return 0
                vertex = self.target[path.pop() ^ 1]
                place[vertex] += 1
        pushed = min(self.left[edge] for edge in path)
        for edge in path:
            self.left[edge] -= pushed
            self.left[edge ^ 1] += pushed
        return pushed


@dataclass(frozen=True, slots=True)
class Run(Generic[K]):
    """What makes ``writes`` of ``reads``; whether it may do so ``again``."""

    reads: tuple[K, ...]
    writes: tuple[K, ...]
    again: bool


@dataclass(frozen=True, slots=True)
class Cut(Generic[K]):
    """``kept`` are stored; what is ``below`` the cut is made again of them if it is needed."""

    kept: frozenset[K]
    below: frozenset[K]


def cut(
    weights: Mapping[K, int],
    given: Iterable[K],
    needed: Iterable[K],
    runs: Iterable[Run[K]],
    late: Callable[[], bool] = lambda: False,
) -> Cut[K] | None:
    """What to keep of the values of a graph so that the rest can be made again, at least weight.

    A minimum cut, as ``min_cut_rematerialization_partition`` of PyTorch has it
    (``torch/_functorch/partitioners.py``). Of cuts of equal weight it is the one nearest to what is
    given.

    Args:
        weights: of keeping a value; values that are not among them are always there.
        given: values that nothing makes.
        needed: values that must be kept or made again.
        runs: what makes the others; each of their weights is a whole number.
        late: whether time is over.

    Returns:
        The cut, or None when it got late.
    """
    number = {value: 2 + 2 * k for k, value in enumerate(weights)}
    network = Network(2 + 2 * len(number))
    endless = sum(weights.values()) + 1
    for value, vertex in number.items():
        network.connect(vertex, vertex + 1, weights[value])
    for value in given:
        if value in number:
            network.connect(0, number[value], endless)
    for value in needed:
        if value in number:
            network.connect(number[value] + 1, 1, endless)
    for run in runs:
        reads = [number[value] + 1 for value in run.reads if value in number]
        writes = [number[value] for value in run.writes if value in number]
        for source in reads if run.again else [0]:
            for target in writes:
                network.connect(source, target, endless)
    if network.saturate(late) is None:
        return None
    side = network.source_side()
    return Cut(
        frozenset(value for value, v in number.items() if v in side and v + 1 not in side),
        frozenset(value for value, v in number.items() if v not in side),
    )
