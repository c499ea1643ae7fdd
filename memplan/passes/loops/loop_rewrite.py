"""A graph in which a backward loop recomputes what the forward loop then need not store.

States are read as the steps find them: a tensor that holds them shifted by one step is found in the
graph or added to it (:class:`Shifts`)."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx
from onnx import helper

from memplan.ir.graph import Phase
from memplan.passes.loops.call import LoopCall, State
from memplan.passes.loops.cell import CellPlan
from memplan.passes.loops.edit_loop import LoopEditor, LoopNames, sweep, sweep_body
from memplan.passes.loops.loop_step import PairStep
from memplan.passes.loops.sequences import Shift, shifted_state
from memplan.proto.edit import copied
from memplan.proto.graph_edit import GraphEdit
from memplan.proto.loop_node import Slices, body_of
from memplan.proto.metadata import FORWARD_KEY, PHASE_KEY
from memplan.proto.names import NameAuthority
from memplan.proto.nodes import names_read, reads_of
from memplan.proto.opset import default_opset
from memplan.shapes.fold import small_constants
from memplan.shapes.infer import INVENTED, run_inference

_AXES_ARE_INPUTS = 13
"""Since this opset, ``Unsqueeze`` reads its axes."""


def store_less(
    model: onnx.ModelProto, steps: Collection[tuple[PairStep, CellPlan]], symbolic: bool
) -> onnx.ModelProto:
    """A copy of ``model`` that keeps of every pair's steps what is ``CellPlan``, and no more.

    Recomputed operators stand first in the backward body, in forward order.

    Args:
        model: the model that the pairs were found in.
        steps: what to keep of which pair.
        symbolic: the model has symbolic dimensions, so no sizes are written.
    """
    edit = GraphEdit(model)
    names = LoopNames(edit)
    for step, kept in steps:
        _Rewriter(edit, step, kept, names, symbolic).run()
    result = edit.finished()
    sweep(result.graph, model.graph)
    _state_types(result, names.stacked)
    return result


def _state_types(model: onnx.ModelProto, names: Collection[str]) -> None:
    """Write down types of new tensors, as far as ONNX infers them."""
    if not names:
        return
    found = run_inference(model)
    for value in found.graph.value_info:
        if value.name in names:
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param.startswith(INVENTED):
                    dim.Clear()
            model.graph.value_info.append(value)


class _Rewriter:
    """Works on one pair."""

    def __init__(
        self,
        edit: GraphEdit,
        step: PairStep,
        kept: CellPlan,
        names: LoopNames,
        symbolic: bool,
    ) -> None:
        self.edit, self.step, self.kept, self.names = edit, step, kept, names
        self.symbolic = symbolic
        pair = step.pair
        self.call: LoopCall = pair.forward
        self.forward, self.backward = (
            LoopEditor(edit.node(call.index), call, pair.steps, names)
            for call in (pair.forward, pair.backward)
        )
        self.shifts = Shifts(edit, pair.backward.index)
        self.node_names = NameAuthority(node.name for node in self.backward.body.node)
        self.backward_names: dict[str, str] = {}
        """Names of the forward body → names in the backward body."""

    def run(self) -> None:
        """Change both bodies."""
        pair, kept = self.step.pair, self.kept
        wanted = {*kept.stored, *kept.used}
        recomputed = {name for node in kept.recomputed for name in node.output if name}
        leading: list[onnx.NodeProto] = []
        for inner, tensor in pair.reads.items():
            if tensor in wanted and tensor not in self.backward_names:
                self.backward_names[tensor] = inner
                leading += self.backward.lifted(inner)
            elif tensor in recomputed and tensor not in self.backward_names:
                self.backward.drop_slice(inner, self._outputs_read())
                self.backward_names[tensor] = inner
            elif tensor in recomputed:  # a second slice of the same
                self.backward.drop_slice(inner, self._outputs_read())
                leading.append(
                    self._noted(
                        helper.make_node("Identity", [self.backward_names[tensor]], [inner])
                    )
                )
        aliases = [node for node in leading if node.op_type == "Identity"]
        leading = [node for node in leading if node.op_type != "Identity"]
        for tensor in sorted(wanted - self.backward_names.keys()):
            leading += self._new_slice(tensor)
        leading += [self._clone(node) for node in kept.recomputed]
        self.backward.put_first([*leading, *aliases])
        sweep_body(self.backward.body)

    def _outputs_read(self) -> set[str]:
        outputs = (value.name for value in self.edit.graph.output)
        return names_read(self.edit.nodes()).union(outputs)

    # -- slices --------------------------------------------------------------------------------

    def _new_slice(self, tensor: str) -> list[onnx.NodeProto]:
        """Let the backward loop read a tensor of the forward body at its step."""
        self.backward_names[tensor] = name = self.names.inner(tensor, body_of(self.backward.node))
        if tensor == self.call.counter:
            return self.backward.mirrored_counter(name)
        found = self._home(tensor)
        kind = self._type(tensor)
        return [
            self._noted(node) if node.op_type != "Constant" else node
            for node in self.backward.add_slice(found, name, kind)
        ]

    def _home(self, tensor: str) -> Slices:
        """Where the graph has a tensor of the forward body, slice by slice; made if nowhere."""
        known = {**self.call.slices, **self.step.formals}
        if tensor in known:
            return known[tensor]
        stacked = dict(reversed(self.forward.stacked))
        if tensor in stacked:
            return stacked[tensor]
        for state in self.call.states:
            if state.before == tensor and state.after in stacked:
                return self.shifts.of(state, stacked[state.after], self.call)
        return self.forward.add_stacked(tensor, self._type(tensor))

    def _type(self, tensor: str) -> onnx.TypeProto:
        """The type of one step's slice."""
        found = self.step.cell.types[tensor]
        shape = [None if self.symbolic else dim for dim in found.shape or ()]
        return helper.make_tensor_type_proto(found.dtype, shape)

    # -- recomputed nodes ------------------------------------------------------------------------

    def _clone(self, node: onnx.NodeProto) -> onnx.NodeProto:
        clone = copied(node)
        clone.name = self.node_names.fresh(f"{node.name or node.op_type}/recompute")
        for slot, name in enumerate(clone.input):
            if name:
                clone.input[slot] = self._visible(name)
        for slot, name in enumerate(clone.output):
            if name:
                if name not in self.backward_names:
                    self.backward_names[name] = self.names.inner(name, body_of(self.backward.node))
                clone.output[slot] = self.backward_names[name]
        return self._noted(clone, node.name)

    def _visible(self, name: str) -> str:
        """What the backward body calls a tensor of the forward body."""
        if name in self.backward_names:
            return self.backward_names[name]
        if name in self.call.invariants:
            return self.call.invariants[name]
        for tensor in self.call.body.initializer:
            if tensor.name == name:
                body = body_of(self.backward.node)
                self.backward_names[name] = fresh = self.names.inner(name, body)
                body.initializer.append(tensor)
                body.initializer[-1].name = fresh
                return fresh
        return name  # of the graph around

    @staticmethod
    def _noted(node: onnx.NodeProto, of: str = "") -> onnx.NodeProto:
        notes = {PHASE_KEY: Phase.BACKWARD, **({FORWARD_KEY: of} if of else {})}
        helper.set_metadata_props(node, notes)
        return node


class Shifts:
    """Finds or makes such tensors before the node ``behind``."""

    def __init__(self, edit: GraphEdit, behind: int) -> None:
        self.edit, self.behind = edit, behind
        self.values = small_constants(edit.model.graph)

    def of(self, state: State, after: Slices, call: LoopCall) -> Slices:
        """The values of ``state`` before every step; ``after`` holds those behind it."""
        nodes = self.edit.nodes()
        makers = {name: node for node in nodes for name in node.output if name}
        for node in nodes:
            if node.op_type != "Concat" or len(node.input) != 2:
                continue
            axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
            met = shifted_state(Slices(node.output[0], axis, False), call, makers, self.values)
            if met is not None and met[0] == state and self._moved(node.output[0]):
                return met[1]
        return self._made(state, after)

    def _moved(self, name: str) -> bool:
        """Have the node that makes ``name``, and what it needs, before the loop; False if it needs
        the loop."""
        nodes = self.edit.nodes()
        loop = self.edit.node(self.behind).name
        place = next(k for k, node in enumerate(nodes) if node.name == loop)
        later = {out: k for k, n in enumerate(nodes) if k >= place for out in n.output if out}
        needed: set[int] = set()
        waiting = [name]
        while waiting:
            k = later.get(waiting.pop())
            if k == place:
                return False
            if k is not None and k not in needed:
                needed.add(k)
                waiting += reads_of(nodes[k])
        self.edit.move_before(self.behind, [nodes[k] for k in sorted(needed)])
        return True

    def _made(self, state: State, after: Slices) -> Slices:
        """``Concat`` of the initial value and all values but the last."""
        stem, shift = f"{state.before}/before", Shift(after)
        first, rest, whole = (self.edit.fresh(f"{stem}/{w}") for w in ("first", "rest", "all"))
        axes, starts, ends = (
            self.edit.constant(np.asarray(numbers, np.int64), f"{stem}/constant")
            for numbers in (shift.axes, *shift.bounds)
        )
        if default_opset(self.edit.model) >= _AXES_ARE_INPUTS:
            nodes = [helper.make_node("Unsqueeze", [state.initial, axes], [first], name=first)]
        else:
            nodes = [
                helper.make_node("Unsqueeze", [state.initial], [first], name=first, axes=shift.axes)
            ]
        nodes.append(helper.make_node("Slice", [after.name, starts, ends, axes], [rest], name=rest))
        parts = shift.parts(first, rest)
        nodes.append(helper.make_node("Concat", parts, [whole], name=whole, axis=after.axis))
        for node in nodes:
            helper.set_metadata_props(node, {PHASE_KEY: Phase.BACKWARD})
        self.edit.put_before(self.behind, *nodes)
        return Slices(whole, after.axis, after.reversed_)
