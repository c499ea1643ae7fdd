"""``chunk``: regions in chunks, as far as the peak or the floor falls by it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from memplan.errors import UsageError
from memplan.ir.build import build_graph
from memplan.ir.graph import Graph, TensorKind
from memplan.ir.phases import Phases
from memplan.passes.base import Applied, peak_did_not_rise
from memplan.passes.chunk.region import Region, grow
from memplan.passes.chunk.uses import Facts
from memplan.passes.chunk.write import Chunked, write_chunks
from memplan.shapes.dims import symbolic_dims
from memplan.shapes.fold import small_constants
from memplan.shapes.prepare import fingerprint
from memplan.simulate.floor import structural_floor
from memplan.simulate.opened import OpenModel
from memplan.simulate.state import rebound
from memplan.simulate.timeline import Timeline, simulate
from memplan.units import counted

AUTO, NONE = "auto", "none"
OLDEST_OPSET = 13
COUNTS = (2, 4, 8, 16, 32, 64)
# What a change must bring, as a share of peak and floor together.
_LEAST_GAIN = 0.01
# More chunks are taken only for as much.
_GAIN_PER_DOUBLING = 0.01
_ROUNDS = 8
_SEEDS = 6
# Tensors are followed if they are larger than this share of the one that a region grew from.
_FOLLOWED = 4
_MOST_NODES = 150


@dataclass(frozen=True, slots=True)
class State:
    """A model on the way, with its simulation and floor (bytes, resident ones and workspace
    included). ``pieces``: tensors that are chunks already."""

    model: OpenModel
    timeline: Timeline
    floor_bytes: int
    pieces: frozenset[str] = frozenset()

    @property
    def peak_bytes(self) -> int:
        """What a budget is held against."""
        return self.timeline.peak_with_workspace_bytes

    @property
    def total(self) -> int:
        """What a change is judged by: the lower the floor, the more recomputation can do."""
        return self.peak_bytes + self.floor_bytes


def parse_chunks(text: str) -> int | None:
    """``auto`` or a number → chunks of every region, 0: what saves most; None: no chunks.

    Raises:
        UsageError: it is neither, nor ``none``.
    """
    if text in ("", NONE):
        return None
    if text == AUTO:
        return 0
    if not text.isdecimal() or int(text) < COUNTS[0]:
        raise UsageError(
            f"'{text}' is not a number of chunks", f"{AUTO}, {NONE} or a number from {COUNTS[0]} on"
        )
    return int(text)


@dataclass(frozen=True, slots=True)
class Chunk:
    """``count``: chunks of every region, 0: what saves most. ``budget_bytes``: a peak that is low
    enough (0: none is)."""

    name: ClassVar[str] = "chunk"
    summary: ClassVar[str] = "regions of large tensors in chunks, forward and backward together"
    count: int = 0
    budget_bytes: int = 0

    def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
        """The model with regions in chunks, as far as peak or floor falls and neither rises."""
        if not timeline.session.priority_order or timeline.session.reuse:
            return Applied(model, note="a default session has an order of its own")
        if model.graph.opset < OLDEST_OPSET or model.prepared.bounded:
            return Applied(model, note="left out: its shapes or its opset do not allow it")
        if timeline.peak_with_workspace_bytes <= self.budget_bytes:
            return Applied(model, note="not needed: the budget holds")
        start = state = _state(_with_sizes(model), timeline)
        notes: list[str] = []
        for _ in range(_ROUNDS):
            if state.peak_bytes <= self.budget_bytes:
                break
            found = self._best(state, timeline)
            if found is None:
                break
            state, note = found
            notes.append(note)
        if state is start:
            return Applied(model, note="no region would save anything")
        return Applied(state.model, "; ".join(notes))

    def _best(self, state: State, start: Timeline) -> tuple[State, str] | None:
        """The best change of one class of regions; None if none is worth it. No peak may be higher
        than that of ``start``."""
        best: tuple[State, str] | None = None
        for regions in _candidates(state):
            graph = state.model.graph
            for count in self._counts(graph, regions):
                after = chunked(state, regions, count)
                now = best[0].total if best else state.total
                least = _GAIN_PER_DOUBLING if best else _LEAST_GAIN
                if now - after.total < least * state.total:
                    continue
                if after.floor_bytes > state.floor_bytes or not peak_did_not_rise(after.timeline, start):
                    continue
                best = after, _note(graph, regions, count)
        return best

    def _counts(self, graph: Graph, regions: Sequence[Region]) -> list[int]:
        most = min(region.most_chunks(graph) for region in regions)
        every = [self.count] if self.count else [c for c in COUNTS if c <= most]
        return [c for c in every if all(region.divisor(graph) % c == 0 for region in regions)]


def _note(graph: Graph, regions: Sequence[Region], count: int) -> str:
    largest = max(
        (t for t in regions[0].axis), key=lambda t: (graph.tensors[t].nbytes, -t)
    )
    where = graph.tensors[largest].name
    many = f"{len(regions)} regions like that of" if len(regions) > 1 else "the region of"
    return f"{many} '{where}' ({counted(len(regions[0].uses), 'node')}) in {count} chunks"


def _candidates(state: State) -> Iterator[list[Region]]:
    """Regions around the tensors that make the peak or the floor, with all others like them."""
    graph = state.model.graph
    facts = Facts(graph, small_constants(state.model.prepared.bound.graph))
    seen: set[tuple[object, ...]] = set()
    for seed in _seeds(state):
        shape = graph.tensors[seed].shape
        for axis in range(len(shape)):
            if shape[axis] < COUNTS[0]:
                continue
            regions = _alike(facts, seed, axis)
            key = tuple(tuple(region.uses.items()) for region in regions)
            if regions and key not in seen:
                seen.add(key)
                yield regions


def _seeds(state: State) -> list[int]:
    """The largest tensors at the floor and at the peak, one of each kind."""
    graph, timeline = state.model.graph, state.timeline
    pinned = structural_floor(graph, timeline).loaded.tensors
    live = [buffer.root for buffer in timeline.live_at(timeline.peak_step)]
    found: dict[tuple[object, ...], int] = {}
    for group in (pinned, live):
        ordered = sorted(group, key=lambda t: -graph.tensors[t].nbytes)
        for tensor in ordered:
            value = graph.tensors[tensor]
            known = value.name in state.pieces or value.is_output
            large = value.nbytes > _LEAST_GAIN * state.total / 2
            if value.kind is TensorKind.COMPUTED and large and not known:
                found.setdefault(_kind(graph, tensor), tensor)
            if len(found) >= _SEEDS:
                break
    return list(found.values())


def _kind(graph: Graph, tensor: int) -> tuple[object, ...]:
    value = graph.tensors[tensor]
    return graph.nodes[value.producer].key, value.shape, value.dtype


def _alike(facts: Facts, seed: int, axis: int) -> list[Region]:
    """The region around a tensor, and those around others of its kind that share no node."""
    graph = facts.graph
    smallest = graph.tensors[seed].nbytes // _FOLLOWED
    kind = _kind(graph, seed)
    others = [
        t.id
        for t in graph.tensors
        if t.producer >= 0 and t.id != seed and t.shape == kind[1] and _kind(graph, t.id) == kind
    ]
    regions: list[Region] = []
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
        regions.append(region)
    return sorted(regions, key=lambda region: min(region.uses))


def _with_sizes(model: OpenModel) -> OpenModel:
    """The model with its dimensions bound in the file: chunks are for one size."""
    prepared = model.prepared
    if not symbolic_dims(prepared.proto):
        return model
    return replace(model, prepared=replace(prepared, proto=prepared.bound))


def _state(model: OpenModel, timeline: Timeline) -> State:
    floor = structural_floor(model.graph, timeline).with_workspace
    return State(model, timeline, timeline.resident_bytes + floor)


def chunked(state: State, regions: Sequence[Region], count: int) -> State:
    """The model with ``regions``, which share no node, in ``count`` chunks each."""
    model = state.model
    written = write_chunks(model.prepared.proto, model.graph, regions, count)
    after = _reopened(model, written)
    found = _state(after, simulate(after.graph, state.timeline.session))
    return replace(found, pieces=state.pieces | written.types.keys())


def _reopened(model: OpenModel, written: Chunked) -> OpenModel:
    """A model that was written in chunks, with the phases and modules of its origins."""
    prepared, old = model.prepared, model.graph
    types = {**prepared.types, **written.types}
    graph = rebound(build_graph(written.model, types), old)
    place = {node.name: node.id for node in old.nodes}
    origin = [place[written.origin.get(node.name, node.name)] for node in graph.nodes]
    phases = model.phases
    loss = None
    if phases.loss is not None:
        found = graph.tensor_named(old.tensors[phases.loss].name)
        loss = None if found is None else found.id
    return OpenModel(
        replace(
            prepared,
            proto=written.model,
            bound=written.model,
            dims={},
            types=types,
            fingerprint=fingerprint(written.model, {}),
        ),
        graph,
        Phases(
            tuple(phases.of[index] for index in origin),
            loss,
            _same(old, graph, phases.parameters),
            _same(old, graph, phases.state),
        ),
        tuple(model.modules[index] for index in origin),
    )


def _same(old: Graph, graph: Graph, chosen: frozenset[int]) -> frozenset[int]:
    """Inputs and constants of the same name."""
    names = {old.tensors[t].name for t in chosen}
    return frozenset(
        t.id for t in graph.tensors if t.kind is not TensorKind.COMPUTED and t.name in names
    )
