"""Which input fences a plain session may need, so that buffer reuse does not break the plan.

An input fence stands on a graph input or a constant (:mod:`memplan.planning.plain.fences`). With
all of them hardly any shape is known, and no buffer is reused. Few do nearly as much: what follows
from a hidden batch is hidden too, up to the next reshape to a constant shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import onnx
from onnx import numpy_helper

from memplan.planning.plain.fences import DIMENSION_READERS, INPUT_FENCE, FenceMaker, data_inputs
from memplan.proto.bare import has_small_content
from memplan.shapes.tensor_type import TensorType

_NOT_FENCED = (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING)


@dataclass(frozen=True, slots=True)
class InputFence:
    """A graph input or constants of equal content, and the node that makes their hidden twin.

    ``fixed``: without it the runtime would change the graph when it loads it.
    """

    sources: tuple[str, ...]
    node: onnx.NodeProto
    fixed: bool

    @property
    def twin(self) -> str:
        """What the nodes read instead."""
        return str(self.node.output[0])


def input_fences_for(
    graph: onnx.GraphProto, types: Mapping[str, TensorType], maker: FenceMaker
) -> list[InputFence]:
    """An input fence for every dense graph input and constant that a node reads.

    In the order in which they are needed: the fixed ones, those on graph inputs, on whole numbers
    (they are mostly shapes), and on other constants from the largest to the smallest.
    """
    read = {name for node in graph.node for _, name in data_inputs(node)}
    constants = [t.name for t in graph.initializer]
    constants += [n.output[0] for n in graph.node if n.op_type == "Constant"]
    size = {name: math.prod(types[name].sizes or ()) for name in constants if name in types}
    constants.sort(key=lambda name: (not _is_whole(types.get(name)), -size.get(name, 0)))
    inputs = [value.name for value in graph.input if value.name not in set(constants)]
    fixed = _fixed(graph, set(constants))
    # The runtime merges equal constants, and then their input fences.
    equal: dict[object, list[str]] = {}
    contents = _contents(graph)
    for name in (*inputs, *constants):
        if name in read and name in types and types[name].dtype not in _NOT_FENCED:
            equal.setdefault(contents.get(name, name), []).append(name)
    every = [
        InputFence(tuple(names), maker.hide(names[0], 0, INPUT_FENCE), not fixed.isdisjoint(names))
        for names in equal.values()
    ]
    return sorted(every, key=lambda fence: not fence.fixed)


def _is_whole(value: TensorType | None) -> bool:
    return value is not None and value.dtype in (onnx.TensorProto.INT64, onnx.TensorProto.INT32)


def _contents(graph: onnx.GraphProto) -> dict[str, object]:
    """What small constants hold, in a form that can be compared."""
    inputs = {value.name for value in graph.input}
    tensors = [(t.name, t) for t in graph.initializer if t.name not in inputs]
    tensors += [
        (node.output[0], node.attribute[0].t)
        for node in graph.node
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value"
    ]
    return {
        name: (t.data_type, tuple(t.dims), numpy_helper.to_array(t).tobytes())
        for name, t in tensors
        if has_small_content(t) and t.data_type not in _NOT_FENCED
    }


def _fixed(graph: onnx.GraphProto, constants: set[str]) -> set[str]:
    """Graph inputs and constants that would make the runtime change the graph when it loads it.

    One constant of each node that reads constants alone: folded, its result would stay in memory.
    What ``DIMENSION_READERS`` read. And weights of convolutions, which a CPU session would turn
    into another layout, with nodes of its own that run out of order.
    """
    found: set[str] = set()
    for node in graph.node:
        if node.op_type in ("Conv", "FusedConv") and node.input[1] in constants:
            found.add(node.input[1])
        if node.op_type in DIMENSION_READERS:
            found.add(node.input[0])
        data = [name for _, name in data_inputs(node)]
        folded = all(name in constants for name in node.input if name)
        if data and folded and not found.intersection(data):
            found.add(data[0])
    return found
