"""Where a forward ``Scan`` has a tensor of its body at all steps.

The node itself is read by :mod:`memplan.proto.loop_node`.
"""

from __future__ import annotations

from memplan.autodiff.emit.emitter import Emitter
from memplan.passes.loops.call import copies_in, root_of
from memplan.proto.loop_node import LoopNode, Slices
from memplan.shapes.tensor_type import Dim, TensorType


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
