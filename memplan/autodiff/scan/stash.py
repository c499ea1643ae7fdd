"""Tensors of a ``Scan``'s body at all steps, for another Scan that runs the other way."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import helper

from memplan.autodiff.emit.emitter import FORWARD_KEY, Emitter
from memplan.autodiff.scan.call import ScanCall, Sequence, add_stacked, stacked_type
from memplan.ir.graph import Phase
from memplan.ir.phases import KEY as PHASE_KEY
from memplan.loops.cell import Kept
from memplan.shapes.tensor_type import Dim, TensorType, write_type

_END = 2**31 - 1


class ScanStash:
    """Finds or makes sequences of the tensors of a forward Scan's body.

    ``outer`` gets new nodes, ``types`` are those of the body's tensors. The forward node changes:
    what is not there yet becomes a further output.
    """

    def __init__(self, outer: Emitter, call: ScanCall, types: Mapping[str, TensorType]) -> None:
        self.outer = outer
        self.call = call
        self.types = types
        self.read: dict[str, Sequence] = {}

    def sequence(self, inner: str) -> Sequence:
        """A tensor of the body at all steps, read from the last step on."""
        if inner not in self.read:
            self.read[inner] = self._new_sequence(inner)
        return self.read[inner]

    def _new_sequence(self, inner: str) -> Sequence:
        call = self.call
        found = call.kept_as(inner)
        if not found.name:
            found = self._stack(inner, found)
        elif inner in call.state_inputs and call.stacked_as(inner) is None:
            found = self._shifted(found, call.initials[call.state_inputs.index(inner)])
        return Sequence(found.name, found.axis, 1 - found.direction)

    def _stack(self, inner: str, place: Sequence) -> Sequence:
        """Make the forward Scan stack a tensor of its body."""
        call, body = self.call, self.call.body
        name = self.outer.fresh(f"{inner}/stash")
        last = {value.name for value in body.output}
        made = {out for node in body.node for out in node.output}
        source = inner
        if inner in last or inner not in made:
            source = self.outer.fresh(f"{inner}/kept")
            body.node.append(helper.make_node("Identity", [inner], [source], name=source))
        found = self.types[inner]
        item = Sequence(name, 0, place.direction)
        add_stacked(call, item, source, write_type(found, final=True))
        self.outer.types[name] = stacked_type(found, 0, self._steps())
        self.outer.places[name] = call.node.name
        self.outer.makers[name] = call.node
        return item

    def _steps(self) -> Dim:
        item = self.call.sequences[0]
        shape = self.outer.tensor(item.name).type.shape
        return "" if shape is None else shape[item.axis]

    def _shifted(self, after: Sequence, initial: str) -> Sequence:
        """The states before all steps, from those behind them: nothing more needs to be kept."""
        whole, axis = self.outer.tensor(after.name), after.axis
        first = self.outer.unsqueeze(self.outer.tensor(initial), [axis])
        if after.direction:
            parts = [self.outer.slice(whole, [1], [_END], [axis]), first]
        else:
            parts = [first, self.outer.slice(whole, [0], [-1], [axis])]
        found = self.outer.op("Concat", *parts, axis=axis, result=whole.type)
        return Sequence(found.name, axis, after.direction)


def run_again(kept: Kept, outer: Emitter) -> list[onnx.NodeProto]:
    """The nodes that run again, as nodes of the backward step."""
    clones = []
    for node in kept.again:
        clone = onnx.NodeProto.FromString(node.SerializeToString())
        clone.name = outer.fresh(f"{node.name}/recompute")
        helper.set_metadata_props(clone, {PHASE_KEY: Phase.BACKWARD, FORWARD_KEY: node.name})
        clones.append(clone)
    return clones
