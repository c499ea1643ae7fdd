"""Maximum flow and minimum cut: Dinic's algorithm, for whole-number capacities."""

from __future__ import annotations

from collections.abc import Callable


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
