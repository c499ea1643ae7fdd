"""Pairs of loops: one that the loss depends on, and one behind it that reads what it stacked.

The backward loop runs the other way: its step u belongs to step T - 1 - u of the forward loop. What
it reads is followed back through copies, reversals and shifts by one step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from memplan.ir.graph import Graph
from memplan.ir.phases import Phases
from memplan.passes.loops.call import LoopCall, LoopReader, Values
from memplan.passes.loops.sequences import Makers, shifted_state, sources
from memplan.proto.elements import tensor_bytes
from memplan.proto.graph_edit import node_protos
from memplan.proto.loop_node import Slices
from memplan.shapes.fold import folded_constants
from memplan.shapes.tensor_type import UNKNOWN, TensorType


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of the forward loop's steps that is there for the backward part.

    ``name`` is that of all steps together in the graph, ``tensor`` that in the body of the forward
    loop, ``type`` the type of one step.
    """

    name: str
    tensor: str
    type: TensorType

    @property
    def step_bytes(self) -> int:
        """Bytes of one step."""
        return sized_bytes(self.type)

    def as_json(self) -> dict[str, object]:
        """For reports."""
        return {
            "name": self.name,
            "tensor": self.tensor,
            "shape": list(self.type.shape or ()),
            "bytes_per_step": self.step_bytes,
        }


def sized_bytes(found: TensorType) -> int:
    """Bytes of a tensor whose size is known; a shape that is not known is empty."""
    return tensor_bytes(found.dtype, found.sizes or ())


@dataclass(frozen=True, slots=True)
class RecurrentPair:
    """A loop, and a backward loop that reads something that the first one computed.

    ``reads`` maps names of the backward body to names of the forward body: the slices of the one
    are what the other computes, or is given, at the same step.
    """

    forward: LoopCall
    backward: LoopCall
    reads: Mapping[str, str]

    @property
    def steps(self) -> int:
        """How often the loops run."""
        return self.forward.steps

    @property
    def stored(self) -> tuple[StoredTensor, ...]:
        """What the backward loop reads of what the forward loop computes."""
        slices = self.forward.slices
        return self._tensors({i: t for i, t in self.reads.items() if t not in slices})

    @property
    def sequences(self) -> tuple[StoredTensor, ...]:
        """What the backward loop reads of what the forward loop is given."""
        slices = self.forward.slices
        return self._tensors({i: t for i, t in self.reads.items() if t in slices})

    @property
    def step_bytes(self) -> int:
        """Bytes stored per step for the backward loop."""
        return sum(item.step_bytes for item in self.stored)

    def _tensors(self, reads: Mapping[str, str]) -> tuple[StoredTensor, ...]:
        """Under the names of what the forward loop stacks or reads, where it does."""
        homes = {
            **{inner: item.name for inner, item in self.forward.slices.items()},
            **{inner: item.name for inner, item in reversed(self.forward.stacked)},
        }
        found: dict[str, StoredTensor] = {}
        for inner, tensor in reads.items():
            name = homes.get(tensor, self.backward.slices[inner].name)
            kind = self.forward.types.get(tensor, UNKNOWN)
            found.setdefault(tensor, StoredTensor(name, tensor, kind))
        return tuple(found.values())

    def as_json(self) -> dict[str, object]:
        """For reports."""
        return {
            "forward": self.forward.node.name,
            "backward": self.backward.node.name,
            "op": self.forward.node.op_type,
            "steps": self.steps,
            "stored_bytes_per_step": self.step_bytes,
            "stored_bytes": self.steps * self.step_bytes,
            "stored": [item.as_json() for item in self.stored],
            "sequences": [item.as_json() for item in self.sequences],
        }


def _reads(forward: LoopCall, backward: LoopCall, makers: Makers, values: Values) -> dict[str, str]:
    """What of ``forward`` the steps of ``backward`` read."""
    return {
        inner: tensor
        for inner, given in backward.slices.items()
        if (tensor := _read_as(given, forward, makers, values)) is not None
    }


def _read_as(given: Slices, forward: LoopCall, makers: Makers, values: Values) -> str | None:
    """The tensor of the forward body of which ``given`` holds the slices, last step first."""
    known = [*forward.stacked, *forward.slices.items()]
    for item in sources(given, forward.steps, makers, values):
        for tensor, there in known:
            if there == item.backwards():
                return tensor
        shifted = shifted_state(item, forward, makers, values)
        if shifted is not None and shifted[1].reversed_ != item.reversed_:
            return shifted[0].before
    return None


def find_pairs(
    model: onnx.ModelProto, types: Mapping[str, TensorType], graph: Graph, phases: Phases
) -> tuple[RecurrentPair, ...]:
    """The pairs of a graph with sizes, in the order of the backward loops.

    Args:
        model: the model with dimensions bound, of which ``graph`` was made.
        types: of its tensors.
        graph: the graph.
        phases: its phases.
    """
    if sum(node.key in (":Scan", ":Loop") for node in graph.nodes) < 2:
        return ()
    inside = {node: bodies[0] for node, bodies in graph.bodies.items() if len(bodies) == 1}
    sized = {node: body.graph for node, body in inside.items() if body.graph and body.trips}
    reader = LoopReader(
        graph.opset,
        _types(graph),
        folded_constants(model, types),
        {node: _types(body) for node, body in sized.items()},
        {node: inside[node].trips or 0 for node in sized},
    )
    nodes = node_protos(model)
    makers = {name: node for node in nodes for name in node.output if name}
    calls = [call for k in sorted(sized) if (call := reader.read(nodes[k], k)) is not None]
    every = (
        RecurrentPair(forward, backward, _reads(forward, backward, makers, reader.values))
        for backward in calls
        for forward in calls
        if forward.index in phases.forward
        and backward.index not in phases.forward
        and forward.steps == backward.steps
    )
    return tuple(pair for pair in every if pair.stored)


def _types(graph: Graph) -> dict[str, TensorType]:
    return {tensor.name: TensorType(tensor.dtype, tensor.shape) for tensor in graph.tensors}
