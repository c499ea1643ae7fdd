"""A ``Scan`` node, read: which tensor stands where, along which axis, in which direction."""

from __future__ import annotations

from dataclasses import dataclass

import onnx
from onnx import helper

from memplan.autodiff.bodies import graph_attribute
from memplan.autodiff.emit.emitter import Emitter
from memplan.shapes.tensor_type import Dim, TensorType


@dataclass(frozen=True, slots=True)
class Sequence:
    """A tensor that a Scan reads or writes slice by slice along ``axis``.

    ``direction`` is 1 if the first step takes the last slice.
    """

    name: str
    axis: int
    direction: int


@dataclass(frozen=True, slots=True)
class ScanCall:
    """The last ``len(sequences)`` inputs are scanned, those before are initial states; the outputs
    are as many last states, then ``stacked``."""

    node: onnx.NodeProto
    body: onnx.GraphProto
    initials: tuple[str, ...]
    sequences: tuple[Sequence, ...]
    finals: tuple[str, ...]
    stacked: tuple[Sequence, ...]

    @property
    def state_inputs(self) -> tuple[str, ...]:
        """The states as a step finds them."""
        return tuple(value.name for value in self.body.input[: len(self.initials)])

    @property
    def slice_inputs(self) -> tuple[str, ...]:
        """The step's slices of the sequences."""
        return tuple(value.name for value in self.body.input[len(self.initials) :])

    @property
    def state_outputs(self) -> tuple[str, ...]:
        """The states as a step leaves them."""
        return tuple(value.name for value in self.body.output[: len(self.initials)])

    @property
    def slice_outputs(self) -> tuple[str, ...]:
        """The step's slices of what is stacked."""
        return tuple(value.name for value in self.body.output[len(self.initials) :])

    def root(self, inner: str) -> str:
        """What a chain of ``Identity`` in the body starts from."""
        makers = {n.output[0]: n for n in self.body.node if n.op_type == "Identity"}
        while inner in makers:
            inner = makers[inner].input[0]
        return inner

    def stacked_as(self, inner: str) -> Sequence | None:
        """The output that holds a tensor of the body at all steps, if there is one."""
        for item, name in zip(self.stacked, self.slice_outputs, strict=False):
            if item.name and self.root(name) == self.root(inner):
                return item
        return None

    def kept_as(self, inner: str) -> Sequence:
        """Where a tensor of the body is, or would be, kept for the backward; name "" if it is not.

        A state is found among the states behind each step, shifted by one.
        """
        if inner in self.slice_inputs:
            return self.sequences[self.slice_inputs.index(inner)]
        found = self.stacked_as(inner)
        if found is None and inner in self.state_inputs:
            found = self.stacked_as(self.state_outputs[self.state_inputs.index(inner)])
        return found or Sequence("", 0, self.sequences[0].direction)


def read_scan(node: onnx.NodeProto, emitter: Emitter) -> ScanCall:
    """The parts of a Scan node; axes count from the front."""
    given = {
        item.name: helper.get_attribute_value(item)
        for item in node.attribute
        if item.type in (onnx.AttributeProto.INT, onnx.AttributeProto.INTS)
    }
    body = graph_attribute(node, "body")
    states = len(node.input) - given["num_scan_inputs"]

    def sequences(names: list[str], kind: str, ranks: list[int]) -> tuple[Sequence, ...]:
        axes = given.get(f"scan_{kind}_axes") or [0] * len(names)
        directions = given.get(f"scan_{kind}_directions") or [0] * len(names)
        return tuple(
            Sequence(name, axis + rank if axis < 0 else axis, direction)
            for name, axis, direction, rank in zip(names, axes, directions, ranks, strict=True)
        )

    scanned = list(node.input[states:])
    stacked = [*node.output, *[""] * (len(body.output) - len(node.output))][states:]
    return ScanCall(
        node,
        body,
        tuple(node.input[:states]),
        sequences(scanned, "input", [len(emitter.tensor(n).type.shape or ()) for n in scanned]),
        tuple(node.output[:states]),
        sequences(stacked, "output", [len(emitter.tensor(n).type.shape or ()) for n in stacked]),
    )


def slice_type(found: TensorType, axis: int) -> TensorType:
    """The type of one step's slice."""
    if found.shape is None:
        return found
    return TensorType(found.dtype, found.shape[:axis] + found.shape[axis + 1 :])


def stacked_type(found: TensorType, axis: int, steps: Dim) -> TensorType:
    """The type of ``steps`` slices stacked along ``axis``."""
    if found.shape is None:
        return found
    return TensorType(found.dtype, (*found.shape[:axis], steps, *found.shape[axis:]))


def input_types(call: ScanCall, emitter: Emitter) -> list[TensorType]:
    """The types with which the body is called."""
    return [emitter.tensor(name).type for name in call.initials] + [
        slice_type(emitter.tensor(item.name).type, item.axis) for item in call.sequences
    ]


def add_stacked(call: ScanCall, item: Sequence, inner: str, found: onnx.TypeProto) -> None:
    """Make a Scan stack one more tensor of its body, as ``item``, along axis 0.

    ``inner`` must be made by a node of the body and be no output yet; ``found`` is its type.
    """
    node, body = call.node, call.body
    node.output.extend([""] * (len(body.output) - len(node.output)))
    node.output.append(item.name)
    before = len(body.output) - len(call.initials)
    body.output.append(onnx.ValueInfoProto(name=inner, type=found))
    for name, number in (("scan_output_axes", 0), ("scan_output_directions", item.direction)):
        old = [attribute for attribute in node.attribute if attribute.name == name]
        numbers = list(old[0].ints) if old and old[0].ints else [0] * before
        for attribute in old:
            node.attribute.remove(attribute)
        if any((*numbers, number)):
            node.attribute.append(helper.make_attribute(name, [*numbers, number]))


def scan_attributes(
    body: onnx.GraphProto, inputs: list[Sequence], outputs: list[Sequence]
) -> dict[str, object]:
    """The attributes of a Scan; those that are all 0 are left out."""
    lists = {
        "scan_input_axes": [item.axis for item in inputs],
        "scan_input_directions": [item.direction for item in inputs],
        "scan_output_axes": [item.axis for item in outputs],
        "scan_output_directions": [item.direction for item in outputs],
    }
    kept = {name: numbers for name, numbers in lists.items() if any(numbers)}
    return {"body": body, "num_scan_inputs": len(inputs), **kept}
