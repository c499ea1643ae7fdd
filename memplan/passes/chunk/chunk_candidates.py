"""What may go into chunks: regions around the tensors that make the peak or the floor."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from math import gcd

from memplan.ir.graph import Graph, TensorKind
from memplan.ir.graph_facts import Facts
from memplan.passes.chunk.chunk_writer import Part
from memplan.passes.chunk.outline import Estimate
from memplan.passes.chunk.region import Region, grow
from memplan.planning.plan_file import ChunkDecision

REGIONS, LAYERS = "regions", "layers"
COUNTS = (2, 4, 8, 16, 32, 64)
# Tensors are followed if they are larger than this share of the one that a region grew from.
_FOLLOWED = 4
_MOST_NODES = 150
_SEEDS = 6
# Smaller tensors, as a share of the floor, are not looked at.
_LEAST_SEED = 0.02


@dataclass(frozen=True, slots=True)
class Choice:
    """A part of a graph in chunks; ``decision``: what a replay needs of it, ``what`` it is, in a
    few words."""

    part: Part
    decision: ChunkDecision
    what: str

    @property
    def words(self) -> str:
        """With how many chunks."""
        return f"{self.what} in {self.part.count} chunks"

    def doubled(self) -> Choice:
        """The same in twice as many chunks."""
        count = 2 * self.part.count
        part, decision = replace(self.part, count=count), replace(self.decision, count=count)
        return replace(self, part=part, decision=decision)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Regions of one kind, which share no node, around the tensors ``seeds`` (names) along
    ``axis``."""

    seeds: tuple[str, ...]
    axis: int
    regions: tuple[Region, ...]

    def without(self, taken: Collection[int]) -> Candidate:
        """The regions that have none of these nodes."""
        left = [
            pair
            for pair in zip(self.seeds, self.regions, strict=True)
            if not any(node in taken for node in pair[1].uses)
        ]
        if len(left) == len(self.regions):
            return self
        return Candidate(tuple(s for s, _ in left), self.axis, tuple(r for _, r in left))

    def divides(self, graph: Graph, count: int) -> bool:
        """Whether chunks of equal size can be had."""
        return all(region.divisor(graph) % count == 0 for region in self.regions)

    def choice(self, graph: Graph, count: int) -> Choice:
        """The regions in so many chunks."""
        decision = ChunkDecision(REGIONS, self.seeds, self.axis, count)
        return Choice(Part(self.regions, count), decision, self.describe(graph))

    def describe(self, graph: Graph) -> str:
        """What they are, in a few words."""
        first = self.regions[0]
        largest = max(first.axis, key=lambda t: (graph.tensors[t].nbytes, -t))
        where = f"'{graph.tensors[largest].name}'"
        many = len(self.regions)
        return f"{many} regions like that of {where}" if many > 1 else f"the region of {where}"


def counts_of(graph: Graph, regions: Iterable[Region]) -> tuple[int, ...]:
    """Into how many chunks regions may go so that products keep their kernels."""
    most = min(region.most_chunks(graph) for region in regions)
    divisor = gcd(*(region.divisor(graph) for region in regions))
    return tuple(count for count in COUNTS if count <= most and divisor % count == 0)


class Regions:
    """Regions of a graph, grown once each."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._found: dict[tuple[object, ...], Candidate] = {}

    def around(self, estimate: Estimate, taken: Collection[int]) -> Iterator[Candidate]:
        """Regions around the tensors that make the peak or the floor, with all others like them.

        Args:
            estimate: what is at the peak and at the floor.
            taken: nodes that are in chunks already.
        """
        graph = self.facts.graph
        seen: set[tuple[object, ...]] = set()
        for seed in seeds(graph, estimate):
            shape = graph.tensors[seed].shape
            for axis in range(len(shape)):
                if shape[axis] < COUNTS[0]:
                    continue
                found = self._alike(seed, axis).without(taken)
                key = tuple(tuple(region.uses.items()) for region in found.regions)
                if found.regions and key not in seen:
                    seen.add(key)
                    yield found

    def _alike(self, seed: int, axis: int) -> Candidate:
        kind = *_kind(self.facts.graph, seed), axis
        found = self._found.get(kind)
        if found is None:
            found = alike(self.facts, seed, axis)
            if found.regions:
                self._found[kind] = found
        return found


def again(facts: Facts, seeds: Iterable[str], axis: int) -> tuple[Region, ...]:
    """The regions around tensors of these names; empty if one is not there."""
    regions: list[Region] = []
    for name in seeds:
        tensor = facts.graph.tensor_named(name)
        if tensor is None or axis >= len(tensor.shape):
            return ()
        region = grow(facts, tensor.id, axis, tensor.nbytes // _FOLLOWED)
        if region is None:
            return ()
        regions.append(region)
    return tuple(regions)


def seeds(graph: Graph, estimate: Estimate) -> list[int]:
    """The largest tensors at the floor and at the peak, one of each kind; those that are small
    beside the floor are not worth it."""
    least = _LEAST_SEED * estimate.floor_bytes
    found: dict[tuple[object, ...], int] = {}
    for group in (estimate.pinned, estimate.live):
        for tensor in sorted(group, key=lambda t: -graph.tensors[t].nbytes):
            value = graph.tensors[tensor]
            computed = value.kind is TensorKind.COMPUTED and not value.is_output
            if computed and value.nbytes > least:
                found.setdefault(_kind(graph, tensor), tensor)
            if len(found) >= _SEEDS:
                break
    return list(found.values())


def _kind(graph: Graph, tensor: int) -> tuple[object, ...]:
    value = graph.tensors[tensor]
    return graph.nodes[value.producer].key, value.shape, value.dtype


def alike(facts: Facts, seed: int, axis: int) -> Candidate:
    """The region around a tensor, and those around others of its kind that share no node."""
    graph = facts.graph
    smallest = graph.tensors[seed].nbytes // _FOLLOWED
    kind = _kind(graph, seed)
    others = [
        t.id
        for t in graph.tensors
        if t.producer >= 0 and t.id != seed and t.shape == kind[1] and _kind(graph, t.id) == kind
    ]
    found: dict[int, Region] = {}
    taken: set[int] = set()
    for tensor in (seed, *others):
        if graph.tensors[tensor].producer in taken:
            continue
        region = grow(facts, tensor, axis, smallest)
        if region is None or taken & region.uses.keys() or len(region.uses) > _MOST_NODES:
            if tensor == seed:
                break
            continue
        taken |= region.uses.keys()
        found[tensor] = region
    ordered = sorted(found, key=lambda tensor: min(found[tensor].uses))
    names = tuple(graph.tensors[tensor].name for tensor in ordered)
    return Candidate(names, axis, tuple(found[tensor] for tensor in ordered))
