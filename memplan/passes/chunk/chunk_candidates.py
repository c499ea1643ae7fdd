"""What may go into chunks: regions around the tensors that make the peak or the floor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from memplan.ir.graph import Graph, TensorKind
from memplan.ir.graph_facts import Facts
from memplan.passes.change import facts_of
from memplan.passes.chunk.chunk_state import State
from memplan.passes.chunk.region import Region, grow
from memplan.simulate.floor import structural_floor

COUNTS = (2, 4, 8, 16, 32, 64)
# Tensors are followed if they are larger than this share of the one that a region grew from.
_FOLLOWED = 4
_MOST_NODES = 150
_SEEDS = 6


@dataclass(frozen=True, slots=True)
class Candidate:
    """Regions of one kind, which share no node, around ``seeds`` along ``axis`` (names: a model
    that is written anew has other ids)."""

    seeds: tuple[str, ...]
    axis: int
    regions: tuple[Region, ...]

    def counts(self, graph: Graph) -> tuple[int, ...]:
        """Into how many chunks they may go so that products keep their kernels."""
        most = min(region.most_chunks(graph) for region in self.regions)
        return tuple(count for count in COUNTS if count <= most and self.divides(graph, count))

    def divides(self, graph: Graph, count: int) -> bool:
        """Whether chunks of equal size can be had."""
        return all(region.divisor(graph) % count == 0 for region in self.regions)

    def describe(self, graph: Graph) -> str:
        """What they are, in a few words."""
        first = self.regions[0]
        largest = max(first.axis, key=lambda t: (graph.tensors[t].nbytes, -t))
        where = f"'{graph.tensors[largest].name}'"
        many = len(self.regions)
        return f"{many} regions like that of {where}" if many > 1 else f"the region of {where}"


def candidates(state: State, least_bytes: float) -> Iterator[Candidate]:
    """Regions around the tensors that make the peak or the floor, with all others like them.

    ``least_bytes``: smaller tensors are not worth it.
    """
    facts = facts_of(state.model)
    graph = facts.graph
    seen: set[tuple[object, ...]] = set()
    for seed in seeds(state, least_bytes):
        shape = graph.tensors[seed].shape
        for axis in range(len(shape)):
            if shape[axis] < COUNTS[0]:
                continue
            found = alike(facts, seed, axis)
            key = tuple(tuple(region.uses.items()) for region in found.regions)
            if found.regions and key not in seen and not has_pieces(state, found.regions):
                seen.add(key)
                yield found


def again(state: State, candidate: Candidate) -> Candidate | None:
    """The same regions in a model that was written anew; None if they are not there."""
    facts = facts_of(state.model)
    regions: list[Region] = []
    for name in candidate.seeds:
        tensor = facts.graph.tensor_named(name)
        if tensor is None:
            return None
        region = grow(facts, tensor.id, candidate.axis, tensor.nbytes // _FOLLOWED)
        if region is None or any(region.uses.keys() & other.uses.keys() for other in regions):
            return None
        regions.append(region)
    if has_pieces(state, regions):
        return None
    return Candidate(candidate.seeds, candidate.axis, tuple(regions))


def has_pieces(state: State, regions: Iterable[Region]) -> bool:
    """Whether nodes of chunks would go into chunks again, where no proof follows them."""
    graph = state.model.graph
    made = (t for region in regions for n in region.uses for t in graph.nodes[n].writes)
    return any(graph.tensors[t].name in state.pieces for t in made)


def seeds(state: State, least_bytes: float) -> list[int]:
    """The largest tensors at the floor and at the peak, one of each kind."""
    graph, timeline = state.model.graph, state.timeline
    pinned = structural_floor(graph, timeline).loaded.tensors
    live = [buffer.root for buffer in timeline.live_at(timeline.peak_step)]
    found: dict[tuple[object, ...], int] = {}
    for group in (pinned, live):
        for tensor in sorted(group, key=lambda t: -graph.tensors[t].nbytes):
            value = graph.tensors[tensor]
            known = value.name in state.pieces or value.is_output
            if value.kind is TensorKind.COMPUTED and value.nbytes > least_bytes and not known:
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
