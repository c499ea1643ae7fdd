"""States as the steps find them: those that a loop leaves, shifted by one step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper

from memplan.ir.graph import Phase
from memplan.ir.phases import KEY as PHASE_KEY
from memplan.loops.call import LoopCall, Slices, State
from memplan.loops.names import Names
from memplan.loops.sequences import shifted_state
from memplan.proto.nodes import captured_names
from memplan.shapes.fold import small_constants

_END = 2**31 - 1
_AXES_ARE_INPUTS = 13
"""Since this opset, ``Unsqueeze`` reads its axes."""


class Shifts:
    """Finds or makes such tensors before the node ``behind``."""

    def __init__(self, model: onnx.ModelProto, behind: onnx.NodeProto, names: Names) -> None:
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
                waiting += [*nodes[k].input, *captured_names(nodes[k])]
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
        stem, axis = f"{state.before}/before", after.axis
        first, rest, whole = (self.names.fresh(f"{stem}/{w}") for w in ("first", "rest", "all"))
        axes = self._constant(stem, [axis])
        opset = next(i.version for i in self.model.opset_import if i.domain in ("", "ai.onnx"))
        if opset >= _AXES_ARE_INPUTS:
            nodes = [helper.make_node("Unsqueeze", [state.initial, axes], [first], name=first)]
        else:
            nodes = [
                helper.make_node("Unsqueeze", [state.initial], [first], name=first, axes=[axis])
            ]
        bounds = ([1], [_END]) if after.reversed_ else ([0], [-1])
        ends = [self._constant(stem, bound) for bound in bounds]
        nodes.append(helper.make_node("Slice", [after.name, *ends, axes], [rest], name=rest))
        parts = [rest, first] if after.reversed_ else [first, rest]
        nodes.append(helper.make_node("Concat", parts, [whole], name=whole, axis=axis))
        for node in nodes:
            helper.set_metadata_props(node, {PHASE_KEY: Phase.BACKWARD})
        place = next(k for k, n in enumerate(self.graph.node) if n.name == self.behind.name)
        for k, node in enumerate(nodes):
            self.graph.node.insert(place + k, node)
        return Slices(whole, axis, after.reversed_)

    def _constant(self, stem: str, numbers: list[int]) -> str:
        name = self.names.fresh(f"{stem}/constant")
        array = np.asarray(numbers, dtype=np.int64)
        self.graph.initializer.append(numpy_helper.from_array(array, name))
        return name


def id_of(node: onnx.NodeProto) -> str:
    """What tells a node of the main graph from the others: its name, or what it makes."""
    return f"{node.name}\x1f{' '.join(node.output)}"
