"""``chunk`` for the cache: what stands between two products runs in chunks that stay in it.

A chain of element-wise nodes reads and writes its tensors in memory, one after the other: ONNX
Runtime compiles no such chain. In chunks of rows, from the product that makes the rows to the one
that takes them, every node finds what the one before has left in the cache, and gradients of
weights go on from sum to sum.

``docs/how/chunking.md`` has what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from memplan.ir.graph import ABSENT, Graph
from memplan.ops.book import PRODUCTS
from memplan.ops.facets import WHOLE
from memplan.passes.change import facts_of
from memplan.passes.chunk.asked import CACHE, NAME, reason_against
from memplan.passes.chunk.choose_chunks import Choice
from memplan.passes.chunk.chunk_candidates import Candidate, alike, has_pieces
from memplan.passes.chunk.chunk_state import State, chunked, sized, stated
from memplan.passes.chunk.region import Region
from memplan.passes.graph_pass import Applied
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline

PIECE_BYTES = 2 << 20
"""A chunk of the largest tensor of a region: about the second-level cache of a core today."""
LEAST_BYTES = 2 * PIECE_BYTES
"""Of a tensor that goes into chunks."""
LEAST_CHAIN = 4
"""What nodes of a region other than products make, at least, per byte that is sliced or joined."""
_Kind = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class ChunkCache:
    """``count``: chunks of every region, 0: as few as fit the cache. ``budget_bytes`` is not heeded
    here: time is what this saves, and no peak rises."""

    name: ClassVar[str] = NAME
    kind: ClassVar[str] = CACHE
    summary: ClassVar[str] = "what stands between products in chunks that stay in the cache"
    count: int = 0
    budget_bytes: int = 0

    def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
        """The model with regions around large results of products in chunks; none where the peak
        or the floor would rise."""
        if timeline.session.provider != "cpu":
            return Applied(model, note="measured on the CPU alone")
        if timeline.session.name != "tuned":
            return Applied(model, note="a plain session has an order of its own")
        if reason := reason_against(model, timeline, 0):
            return Applied(model, note=reason)
        start = sized(model, timeline)
        state, choices = start, list[Choice]()
        for kind in _kinds(start.model.graph):
            found = self._with(kind, state, start)
            if found is not None:
                state, choice = found
                choices.append(choice)
        if not choices:
            return Applied(model, note="no chain between products is long and large enough")
        return Applied(
            stated(state.model),
            "; ".join(str(choice) for choice in choices),
            tuple(choice.decision for choice in choices),
            judged=True,
        )

    def _with(self, kind: _Kind, state: State, start: State) -> tuple[State, Choice] | None:
        """The regions around results of one kind in chunks; None where they are not worth it."""
        candidate = _candidate(state, kind)
        if candidate is None:
            return None
        counts, nbytes = candidate.counts(state.model.graph), _nbytes(state.model.graph, candidate)
        fitting = (count for count in counts if nbytes <= count * PIECE_BYTES)
        count = self.count or next(fitting, max(counts, default=0))
        if count not in counts:
            return None
        after = chunked(state, candidate.regions, count)
        if not _is_as_low(after, start):
            return None
        return after, Choice(candidate, count, candidate.describe(state.model.graph))


def _is_as_low(after: State, start: State) -> bool:
    """Whether neither peak nor floor rose, but for the constants that say where slices begin."""
    more = after.timeline.resident_bytes - start.timeline.resident_bytes
    return (
        after.peak_bytes - more <= start.peak_bytes
        and after.timeline.peak_bytes - more <= start.timeline.peak_bytes
        and after.floor_bytes - more <= start.floor_bytes
    )


def _kinds(graph: Graph) -> list[_Kind]:
    """Operator and shape of large results of products, the largest first."""
    found: dict[_Kind, int] = {}
    for tensor in graph.tensors:
        if tensor.producer >= 0 and tensor.nbytes >= LEAST_BYTES and not tensor.is_output:
            key = graph.nodes[tensor.producer].key
            if key in PRODUCTS:
                found.setdefault((key, tensor.shape), tensor.nbytes)
    return sorted(found, key=lambda kind: -found[kind])


def _candidate(state: State, kind: _Kind) -> Candidate | None:
    """The regions along the first axis around results of a kind that are chains of many nodes, the
    largest tensors of which are these."""
    graph = state.model.graph
    key, shape = kind
    of_kind = (t for t in graph.tensors if t.shape == shape and t.producer >= 0)
    seed = next((t for t in of_kind if graph.nodes[t.producer].key == key), None)
    if seed is None:
        return None
    every = alike(facts_of(state.model), seed.id, 0)
    pairs = [
        (name, region)
        for name, region in zip(every.seeds, every.regions, strict=True)
        if _is_chain(graph, region, seed.nbytes) and not has_pieces(state, [region])
    ]
    if not pairs:
        return None
    names, regions = zip(*pairs, strict=True)
    return Candidate(names, 0, regions)


def _is_chain(graph: Graph, region: Region, nbytes: int) -> bool:
    """Whether nothing larger is in a region, and nodes that are no products make enough in it."""
    made = [
        (node, graph.tensors[t])
        for node in region.uses
        for t in graph.nodes[node].writes
        if region.axis[t] >= 0
    ]
    if max(tensor.nbytes for _, tensor in made) > nbytes:
        return False
    between = sum(t.nbytes for node, t in made if graph.nodes[node].key not in PRODUCTS)
    joined = sum(t.nbytes for _, t in made if t.is_output or not region.uses.keys() >= {*t.readers})
    return between >= LEAST_CHAIN * (_sliced_bytes(graph, region) + joined)


def _sliced_bytes(graph: Graph, region: Region) -> int:
    """What a region reads from outside, slice by slice."""
    sliced = {
        (tensor, axis)
        for node, use in region.uses.items()
        for slot, (tensor, axis) in enumerate(zip(graph.nodes[node].inputs, use.reads, strict=True))
        if axis != WHOLE and slot != use.shape_slot and tensor != ABSENT
    }
    return sum(graph.tensors[t].nbytes for t, _ in sliced if t not in region.axis)


def _nbytes(graph: Graph, candidate: Candidate) -> int:
    tensor = graph.tensor_named(candidate.seeds[0])
    return 0 if tensor is None else tensor.nbytes
