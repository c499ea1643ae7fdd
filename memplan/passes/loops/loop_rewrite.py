"""A graph in which a backward loop recomputes what the forward loop then need not store.

States are read as the steps find them: a tensor that holds them shifted by one step is found in the
graph or added to it (:class:`Shifts`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper

from memplan.ir.graph import Phase
from memplan.passes.loops.call import LoopCall, State
from memplan.passes.loops.cell import CellPlan
from memplan.passes.loops.edit_loop import LoopEditor, LoopNames, sweep, sweep_body
from memplan.passes.loops.loop_step import PairStep
from memplan.passes.loops.sequences import Shift, shifted_state
from memplan.proto import native
from memplan.proto.edit import copied
from memplan.proto.loop_node import Slices, body_of
from memplan.proto.metadata import FORWARD_KEY, PHASE_KEY
from memplan.proto.names import NameAuthority
from memplan.proto.nodes import names_read, reads_of
from memplan.proto.opset import default_opset
from memplan.shapes.fold import small_constants

_AXES_ARE_INPUTS = 13
"""Since this opset, ``Unsqueeze`` reads its axes."""
_INVENTED = "unk__"
"""How ONNX's shape inference calls dimensions that it does not know."""


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
    copy = copied(model)
    names = LoopNames(copy.graph)
    for step, kept in steps:
        _Rewriter(copy, step, kept, names, symbolic).run()
    sweep(copy.graph, model.graph)
    _state_types(copy, names.stacked)
    return copy


def _state_types(model: onnx.ModelProto, names: Collection[str]) -> None:
    """Write down types of new tensors, as far as ONNX infers them."""
    if not names:
        return
    found = native.infer_shapes(model)
    for value in found.graph.value_info:
        if value.name in names:
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param.startswith(_INVENTED):
                    dim.Clear()
            model.graph.value_info.append(value)


class _Rewriter:
    """Works on one pair."""

    def __init__(
        self,
        model: onnx.ModelProto,
        step: PairStep,
        kept: CellPlan,
        names: LoopNames,
        symbolic: bool,
    ) -> None:
        self.model, self.step, self.kept, self.names = model, step, kept, names
        self.symbolic = symbolic
        pair = step.pair
        nodes = {node.name: node for node in model.graph.node}
        self.call: LoopCall = pair.forward
        self.forward = LoopEditor(nodes[pair.forward.node.name], pair.forward, pair.steps)
        self.backward = LoopEditor(nodes[pair.backward.node.name], pair.backward, pair.steps)
        self.shifts = Shifts(model, nodes[pair.backward.node.name], names)
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
        graph = self.model.graph
        return names_read(graph.node) | {value.name for value in graph.output}

    # -- slices --------------------------------------------------------------------------------

    def _new_slice(self, tensor: str) -> list[onnx.NodeProto]:
        """Let the backward loop read a tensor of the forward body at its step."""
        self.backward_names[tensor] = name = self.names.inner(tensor, body_of(self.backward.node))
        if tensor == self.call.counter:
            return self.backward.mirrored_counter(self.names, name)
        found = self._home(tensor)
        kind = self._type(tensor)
        return [
            self._noted(node) if node.op_type != "Constant" else node
            for node in self.backward.add_slice(found, name, kind, self.names)
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
        return self.forward.add_stacked(tensor, self._type(tensor), self.names)

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

    def __init__(self, model: onnx.ModelProto, behind: onnx.NodeProto, names: LoopNames) -> None:
        self.model, self.graph, self.behind, self.names = model, model.graph, behind, names
        self.values = small_constants(model.graph)

    def of(self, state: State, after: Slices, call: LoopCall) -> Slices:
        """The values of ``state`` before every step; ``after`` holds those behind it."""
        makers = {name: node for node in self.graph.node for name in node.output if name}
        for node in self.graph.node:
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
        nodes = list(self.graph.node)
        place = next(k for k, node in enumerate(nodes) if node.name == self.behind.name)
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
        if needed:
            order = [*range(place), *sorted(needed)]
            order += [k for k in range(place, len(nodes)) if k not in needed]
            self._reorder(nodes[k] for k in order)
        return True

    def _reorder(self, nodes: Iterator[onnx.NodeProto]) -> None:
        """Nodes change places; those objects that others hold stay what they are."""
        rank = {id_of(node): k for k, node in enumerate(nodes)}
        self.graph.node.sort(key=lambda node: rank[id_of(node)])

    def _made(self, state: State, after: Slices) -> Slices:
        """``Concat`` of the initial value and all values but the last."""
        stem, shift = f"{state.before}/before", Shift(after)
        first, rest, whole = (self.names.fresh(f"{stem}/{w}") for w in ("first", "rest", "all"))
        axes = self._constant(stem, shift.axes)
        if default_opset(self.model) >= _AXES_ARE_INPUTS:
            nodes = [helper.make_node("Unsqueeze", [state.initial, axes], [first], name=first)]
        else:
            nodes = [
                helper.make_node("Unsqueeze", [state.initial], [first], name=first, axes=shift.axes)
            ]
        ends = [self._constant(stem, bound) for bound in shift.bounds]
        nodes.append(helper.make_node("Slice", [after.name, *ends, axes], [rest], name=rest))
        parts = shift.parts(first, rest)
        nodes.append(helper.make_node("Concat", parts, [whole], name=whole, axis=after.axis))
        for node in nodes:
            helper.set_metadata_props(node, {PHASE_KEY: Phase.BACKWARD})
        place = next(k for k, n in enumerate(self.graph.node) if n.name == self.behind.name)
        for k, node in enumerate(nodes):
            self.graph.node.insert(place + k, node)
        return Slices(whole, after.axis, after.reversed_)

    def _constant(self, stem: str, numbers: list[int]) -> str:
        name = self.names.fresh(f"{stem}/constant")
        array = np.asarray(numbers, dtype=np.int64)
        self.graph.initializer.append(numpy_helper.from_array(array, name))
        return name


def id_of(node: onnx.NodeProto) -> str:
    """What tells a node of the main graph from the others: its name, or what it makes."""
    return f"{node.name}\x1f{' '.join(node.output)}"
