"""What may go into chunks: regions around the tensors that make the peak or the floor, or the last
layers of a network, forward and backward together."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from memplan.ir.graph import Graph, TensorKind
from memplan.ir.graph_facts import Facts
from memplan.passes.chunk.outline import Estimate
from memplan.passes.chunk.part import COUNTS, LAYERS, Part
from memplan.passes.chunk.region import Region, grow
from memplan.passes.chunk.turn import turn_again, turns
from memplan.planning.plan_file import ChunkDecision

# Tensors are followed if they are larger than this share of the one that a region grew from.
_FOLLOWED = 4
_MOST_NODES = 150
_SEEDS = 6
# Smaller tensors, as a share of the floor, are not looked at.
_LEAST_SEED = 0.02


class Regions:
    """Regions of a graph, grown once each."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._found: dict[tuple[object, ...], Part] = {}

    def around(self, estimate: Estimate, taken: Collection[int]) -> Iterator[Part]:
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

    def _alike(self, seed: int, axis: int) -> Part:
        kind = *_kind(self.facts.graph, seed), axis
        found = self._found.get(kind)
        if found is None:
            found = alike(self.facts, seed, axis)
            if found.regions:
                self._found[kind] = found
        return found


def layers(facts: Facts, forward: frozenset[int], estimate: Estimate, count: int) -> list[Part]:
    """What layers there are along an axis, in how many chunks each; what adds most comes last.

    Args:
        facts: what is known of the graph.
        forward: the nodes that the loss depends on.
        estimate: what is at the peak and at the floor.
        count: of chunks; 0: as many as keep the kernels of products.
    """
    graph = facts.graph
    for seed in seeds(graph, estimate):
        for axis in range(len(graph.tensors[seed].shape)):
            every = turns(facts, forward, seed, axis)
            found = [part.into(each) for part in every for each in part.counts(graph, count)]
            if found:
                return sorted(found, key=lambda part: part.added)
    return []


def again(facts: Facts, decision: ChunkDecision) -> Part | None:
    """The part of a plan file; None where the graph has none like it, or it does not divide."""
    graph, count, axis = facts.graph, decision.count, decision.axis
    regions: list[Region] = []
    for name in decision.seeds:
        tensor = graph.tensor_named(name)
        if tensor is None or axis >= len(tensor.shape):
            return None
        if decision.kind == LAYERS:
            region = turn_again(facts, tensor.id, axis, decision.first, decision.last)
        else:
            region = grow(facts, tensor.id, axis, tensor.nbytes // _FOLLOWED)
        if region is None:
            return None
        regions.append(region)
    found = Part(tuple(regions), count)
    return found if regions and count > 1 and found.counts(graph, count) else None


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


def alike(facts: Facts, seed: int, axis: int) -> Part:
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
    regions = tuple(found[tensor] for tensor in ordered)
    return Part(regions, seeds=names, axis=axis)
