"""What goes into chunks: regions, in how many chunks, and how a plan file says so."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import gcd

from memplan.ir.graph import Graph
from memplan.passes.chunk.region import Region
from memplan.planning.plan_file import ChunkDecision
from memplan.units import counted

REGIONS, LAYERS = "regions", "layers"
COUNTS = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Part:
    """Regions that share no node and run in ``count`` chunks each, found along ``axis``.

    They grow from the tensors ``seeds`` (names), one from each; those of ``kind`` LAYERS are the
    nodes from ``first`` to ``last`` (names) along the axis of one tensor.
    """

    regions: tuple[Region, ...]
    count: int = 1
    kind: str = REGIONS
    seeds: tuple[str, ...] = ()
    axis: int = 0
    first: str | None = None
    last: str | None = None

    @property
    def nodes(self) -> int:
        """How many nodes of the graph."""
        return sum(len(region.uses) for region in self.regions)

    @property
    def added(self) -> int:
        """About how many nodes it adds."""
        return self.nodes * (self.count - 1)

    @property
    def decision(self) -> ChunkDecision:
        """What a replay needs of it."""
        return ChunkDecision(self.kind, self.seeds, self.axis, self.count, self.first, self.last)

    def into(self, count: int) -> Part:
        """The same in so many chunks."""
        return replace(self, count=count)

    def counts(self, graph: Graph, asked: int = 0) -> tuple[int, ...]:
        """Into how many chunks of equal size it may go: ``asked``, or where that is 0 as many as
        let products keep their kernels."""
        divisor = gcd(*(region.divisor(graph) for region in self.regions))
        if asked:
            return () if divisor % asked else (asked,)
        most = min(region.most_chunks(graph) for region in self.regions)
        return tuple(count for count in COUNTS if count <= most and divisor % count == 0)

    def without(self, taken: Collection[int]) -> Part:
        """The regions that have none of these nodes."""
        pairs = zip(self.seeds, self.regions, strict=True)
        left = [pair for pair in pairs if not any(node in taken for node in pair[1].uses)]
        return replace(self, seeds=tuple(s for s, _ in left), regions=tuple(r for _, r in left))

    def words(self, graph: Graph) -> str:
        """What runs in how many chunks."""
        many, axes = len(self.regions), self.regions[0].axis
        if self.kind == LAYERS:
            nodes = counted(self.nodes, "node")
            what = f"{nodes} from '{self.first}' on, forward and backward,"
        else:
            largest = max(axes, key=lambda t: (graph.tensors[t].nbytes, -t))
            where = f"'{graph.tensors[largest].name}'"
            what = f"{many} regions like that of {where}" if many > 1 else f"the region of {where}"
        return f"{what} in {self.count} chunks"
