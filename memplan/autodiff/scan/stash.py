"""Tensors of a ``Scan``'s body at all steps, for another Scan that runs the other way."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import helper

from memplan.autodiff.emit.emitter import Emitter
from memplan.autodiff.emit.operations import Operations
from memplan.ir.graph import Phase
from memplan.passes.loops.call import copies_in, root_of
from memplan.passes.loops.cell import CellPlan
from memplan.passes.loops.edit_loop import append_stacked, is_own_output, own_output
from memplan.passes.loops.sequences import Shift
from memplan.proto.edit import copied
from memplan.proto.loop_node import LoopNode, Slices
from memplan.proto.metadata import FORWARD_KEY, PHASE_KEY
from memplan.shapes.tensor_type import Dim, TensorType, write_type


def rank_in(emitter: Emitter, name: str) -> int:
    """The rank of a tensor; 0 where it is not known."""
    return len(emitter.tensor(name).type.shape or ())


def stacked_as(call: LoopNode, inner: str) -> Slices | None:
    """The output that holds a tensor of the body at all steps, if there is one."""
    copies = copies_in(call.body, {})
    for item, name in zip(call.stacked, call.slice_outputs, strict=False):
        if item.name and root_of(name, copies) == root_of(inner, copies):
            return item
    return None


def kept_as(call: LoopNode, inner: str) -> Slices:
    """Where a tensor of the body is, or would be, kept for the backward; name "" if it is not.

    A state is found among the states behind each step, shifted by one.
    """
    if inner in call.slice_inputs:
        return call.sequences[call.slice_inputs.index(inner)]
    found = stacked_as(call, inner)
    if found is None and inner in call.state_inputs:
        found = stacked_as(call, call.state_outputs[call.state_inputs.index(inner)])
    return found or Slices("", 0, call.sequences[0].reversed_)


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


def input_types(call: LoopNode, emitter: Emitter) -> list[TensorType]:
    """The types with which the body is called."""
    return [emitter.tensor(name).type for name in call.initials] + [
        slice_type(emitter.tensor(item.name).type, item.axis) for item in call.sequences
    ]


class ScanStash:
    """Finds or makes sequences of the tensors of a forward Scan's body.

    ``outer`` gets new nodes, ``types`` are those of the body's tensors. The forward node changes:
    what is not there yet becomes a further output.
    """

    def __init__(self, outer: Emitter, call: LoopNode, types: Mapping[str, TensorType]) -> None:
        self.outer = outer
        self.call = call
        self.types = types
        self.read: dict[str, Slices] = {}

    def sequence(self, inner: str) -> Slices:
        """A tensor of the body at all steps, read from the last step on."""
        if inner not in self.read:
            self.read[inner] = self._new_sequence(inner)
        return self.read[inner]

    def _new_sequence(self, inner: str) -> Slices:
        call = self.call
        found = kept_as(call, inner)
        if not found.name:
            found = self._stack(inner, found)
        elif inner in call.state_inputs and stacked_as(call, inner) is None:
            found = self._shifted(found, call.initials[call.state_inputs.index(inner)])
        return found.backwards()

    def _stack(self, inner: str, place: Slices) -> Slices:
        """Make the forward Scan stack a tensor of its body."""
        call, name = self.call, self.outer.fresh(f"{inner}/stash")
        source, found = inner, self.types[inner]
        if not is_own_output(call.body, inner):
            source = own_output(call.body, inner, self.outer.fresh(f"{inner}/kept"))
        kind = write_type(found, final=True)
        item = append_stacked(call.node, source, kind, name, reversed_=place.reversed_)
        self.outer.types[name] = stacked_type(found, 0, self._steps())
        self.outer.places[name] = call.node.name
        self.outer.makers[name] = call.node
        return item

    def _steps(self) -> Dim:
        item = self.call.sequences[0]
        shape = self.outer.tensor(item.name).type.shape
        return "" if shape is None else shape[item.axis]

    def _shifted(self, after: Slices, initial: str) -> Slices:
        """The states before all steps, from those behind them: nothing more needs to be kept."""
        whole, shift = self.outer.tensor(after.name), Shift(after)
        build = Operations(self.outer)
        first = build.unsqueeze(self.outer.tensor(initial), shift.axes)
        others = build.slice(whole, *shift.bounds, shift.axes)
        parts = shift.parts(first, others)
        found = build.op("Concat", *parts, axis=after.axis, result=whole.type)
        return Slices(found.name, after.axis, after.reversed_)


def recomputed_nodes(kept: CellPlan, outer: Emitter) -> list[onnx.NodeProto]:
    """What a plan recomputes, as nodes of the backward step."""
    clones = []
    for node in kept.recomputed:
        clone = copied(node)
        clone.name = outer.fresh(f"{node.name}/recompute")
        helper.set_metadata_props(clone, {PHASE_KEY: Phase.BACKWARD, FORWARD_KEY: node.name})
        clones.append(clone)
    return clones
