"""Pairs of loops: one that the loss depends on, and one behind it that reads what it stacked.

The backward loop runs the other way: its step u belongs to step T - 1 - u of the forward loop. What
it reads is followed back through copies, reversals and shifts by one step. There is one finder,
:func:`pairs_in`, for graphs with and without sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx

from memplan.ir.graph import Graph
from memplan.ir.phases import Phases
from memplan.passes.loops.call import LoopCall, LoopReader, Values
from memplan.passes.loops.sequences import Makers, shifted_state, sources
from memplan.proto.elements import tensor_bytes
from memplan.proto.loop_node import Slices
from memplan.proto.metadata import FORWARD_KEY, node_metadata
from memplan.proto.nodes import is_constant
from memplan.shapes.fold import folded_constants
from memplan.shapes.tensor_type import UNKNOWN, Dim, TensorType


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
    def shape(self) -> tuple[Dim, ...]:
        """The shape of one step."""
        return self.type.shape or ()

    def step_bytes(self, dims: Mapping[str, int] | None = None) -> int | None:
        """Bytes of one step with ``dims`` put in for names; None if a dimension is not known."""
        return sized_bytes(self.type, dims or {})

    def as_json(self, dims: Mapping[str, int] | None = None) -> dict[str, object]:
        """For reports."""
        return {
            "name": self.name,
            "tensor": self.tensor,
            "shape": list(self.shape),
            "bytes_per_step": self.step_bytes(dims),
        }


def sized_bytes(found: TensorType, dims: Mapping[str, int]) -> int | None:
    """Bytes of a tensor; None if a dimension has no size. A shape that is not known is empty."""
    sizes = [dim if isinstance(dim, int) else dims.get(dim) for dim in found.shape or ()]
    known = [size for size in sizes if size is not None]
    return tensor_bytes(found.dtype, known) if len(known) == len(sizes) else None


def stored_bytes(
    stored: Sequence[StoredTensor], dims: Mapping[str, int] | None = None
) -> int | None:
    """Bytes of one step of all tensors; None if a dimension is not known."""
    parts = [item.step_bytes(dims) for item in stored]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


@dataclass(frozen=True, slots=True)
class LoopPair:
    """Two loops, with names for dimensions or sizes.

    ``reads`` maps names of the backward body to names of the forward body: the slices of the one
    are what the other computes, or is given, at the same step.
    """

    forward: LoopCall
    backward: LoopCall
    reads: Mapping[str, str]

    @property
    def noted(self) -> bool:
        """Whether the backward loop says whose it is."""
        return node_metadata(self.backward.node).get(FORWARD_KEY) == self.forward.node.name

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


@dataclass(frozen=True, slots=True)
class RecurrentPair(LoopPair):
    """A pair with sizes, of which the backward loop reads something that the forward loop
    computed."""

    @property
    def steps(self) -> int:
        """How often the loops run."""
        assert isinstance(self.forward.steps, int)
        return self.forward.steps

    @property
    def step_bytes(self) -> int:
        """Bytes stored per step for the backward loop."""
        return stored_bytes(self.stored) or 0

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


def pairs_in(
    graph: onnx.GraphProto, reader: LoopReader, is_backward: Callable[[LoopCall], bool] | None
) -> tuple[LoopPair, ...]:
    """The pairs of a graph, in the order of the backward loops.

    Args:
        graph: the graph; bodies of its nodes are not searched.
        reader: knows types and constants.
        is_backward: which loops are backward; None: any may be, of an earlier one.
    """
    nodes = [node for node in graph.node if not is_constant(node)]
    calls = [call for k, node in enumerate(nodes) if (call := reader.read(node, k)) is not None]
    makers = {name: node for node in nodes for name in node.output if name}
    found = []
    for backward in calls:
        for forward in calls:
            if is_backward is None:
                may_be = forward.index < backward.index
            else:
                may_be = is_backward(backward) and not is_backward(forward)
            pair = _pair(forward, backward, makers, reader.values) if may_be else None
            if pair is not None and (pair.stored or pair.noted):
                found.append(pair)
    return tuple(found)


def _pair(forward: LoopCall, backward: LoopCall, makers: Makers, values: Values) -> LoopPair | None:
    """What of ``forward`` the steps of ``backward`` read; None if they differ in number."""
    counts = (forward.steps, backward.steps)
    if all(isinstance(steps, int) for steps in counts) and counts[0] != counts[1]:
        return None
    reads = {
        inner: tensor
        for inner, given in backward.slices.items()
        if (tensor := _read_as(given, forward, makers, values)) is not None
    }
    return LoopPair(forward, backward, reads)


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
        {tensor.name: TensorType(tensor.dtype, tensor.shape) for tensor in graph.tensors},
        folded_constants(model, types),
        {
            node: {tensor.name: TensorType(tensor.dtype, tensor.shape) for tensor in body.tensors}
            for node, body in sized.items()
        },
        {node: body.trips or 0 for node, body in inside.items()},
    )
    return tuple(
        RecurrentPair(pair.forward, pair.backward, pair.reads)
        for pair in pairs_in(model.graph, reader, lambda call: call.index not in phases.forward)
        if pair.stored and {pair.forward.index, pair.backward.index} <= sized.keys()
    )
