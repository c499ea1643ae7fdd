"""A model on the way into chunks: written, opened again and simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from memplan.ops.book import SHAPE_READERS
from memplan.passes.chunk.chunk_writer import write_chunks
from memplan.passes.chunk.part import Part
from memplan.passes.surgery import reopened
from memplan.proto.edit import copied
from memplan.proto.nodes import operator_key
from memplan.shapes.dims import symbolic_dims
from memplan.shapes.fold import evaluate
from memplan.shapes.infer import replace_by_constants, state_types
from memplan.simulate.floor import structural_floor
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline, simulate

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class State:
    """A model on the way, with its simulation and floor (bytes, resident ones and workspace
    included)."""

    model: OpenModel
    timeline: Timeline
    floor_bytes: int

    @property
    def peak_bytes(self) -> int:
        """What a budget is held against."""
        return self.timeline.peak_with_workspace_bytes


def with_sizes(model: OpenModel) -> OpenModel:
    """The model with its dimensions bound in the file: chunks are for one size. What asks for the
    sizes of a tensor, and so would need it whole, is a constant then."""
    prepared = model.prepared
    if symbolic_dims(prepared.proto):
        model = replace(model, prepared=replace(prepared, proto=prepared.bound))
    asked = _sizes_asked(model)
    if not asked:
        return model
    proto = copied(model.prepared.proto)
    replace_by_constants(proto.graph, asked)
    return reopened(model, proto)


def stated(model: OpenModel) -> OpenModel:
    """The model with the size of every tensor in the file: the parts of fused nodes are long chains
    of operators that shape inference does not know. The runtime then knows these sizes, too."""
    prepared = model.prepared
    exact = {
        name: replace(each, static=True, seen=None)
        for name, each in prepared.types.items()
        if each.sizes is not None and name not in prepared.bounded
    }
    proto = copied(prepared.proto)
    state_types(proto.graph, exact)
    told = replace(prepared, types={**prepared.types, **exact})
    return reopened(replace(model, prepared=told), proto)


def _sizes_asked(model: OpenModel) -> dict[str, Array]:
    """What ``Shape`` and ``Size`` give of tensors that nodes make."""
    proto, types = model.prepared.proto, model.prepared.types
    made = {name for node in proto.graph.node for name in node.output}
    outputs = {value.name for value in proto.graph.output}
    found: dict[str, Array] = {}
    for node in proto.graph.node:
        if operator_key(node) in SHAPE_READERS and node.input[0] in made - outputs:
            found |= evaluate(proto, node, {}, types)
    return {name: array for name, array in found.items() if name not in outputs}


def state_of(model: OpenModel, timeline: Timeline) -> State:
    floor = structural_floor(model.graph, timeline).with_workspace
    return State(model, timeline, timeline.resident_bytes + floor)


def sized(model: OpenModel, timeline: Timeline) -> State:
    """The model with its sizes in the file, simulated as in ``timeline``."""
    found = with_sizes(model)
    same = found.graph is model.graph
    return state_of(found, timeline if same else simulate(found.graph, timeline.session))


def chunked(state: State, parts: Sequence[Part]) -> State:
    """The model with ``parts``, which share no node, in chunks."""
    after = write_chunks(state.model, parts).opened()
    return state_of(after, simulate(after.graph, state.timeline.session))
