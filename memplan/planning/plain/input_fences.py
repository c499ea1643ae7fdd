"""Which input fences a plain session needs, so that buffer reuse does not break the plan.

An input fence stands on a graph input or a constant (:mod:`memplan.planning.plain.fences`). With
all of them hardly any shape is known, and no buffer is reused. Few do nearly as much: what follows
from a hidden batch is hidden too, up to the next reshape to a constant shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import numpy_helper

from memplan.deadline import Deadline
from memplan.planning.plain.fences import DIMENSION_READERS, INPUT_FENCE, FenceMaker, data_inputs
from memplan.proto.bare import has_small_content, without_weights
from memplan.proto.edit import copied
from memplan.shapes.tensor_type import TensorType
from memplan.shapes.visible import visible_names

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

    In the order in which they are given up: whole numbers first (they are mostly shapes, which a
    GPU would have to hand back to the host behind an input fence), then other constants from the
    largest to the smallest, then graph inputs from the last to the first.
    """
    read = {name for node in graph.node for _, name in data_inputs(node)}
    constants = [t.name for t in graph.initializer]
    constants += [n.output[0] for n in graph.node if n.op_type == "Constant"]
    size = {name: math.prod(types[name].sizes or ()) for name in constants if name in types}
    constants.sort(key=lambda name: (not _is_whole(types.get(name)), -size.get(name, 0)))
    inputs = [value.name for value in reversed(graph.input) if value.name not in set(constants)]
    fixed = _fixed(graph, set(constants))
    # The runtime merges equal constants, and then their input fences.
    equal: dict[object, list[str]] = {}
    contents = _contents(graph)
    for name in (*constants, *inputs):
        if name in read and name in types and types[name].dtype not in _NOT_FENCED:
            equal.setdefault(contents.get(name, name), []).append(name)
    return [
        InputFence(tuple(names), maker.hide(names[0], 0, INPUT_FENCE), not fixed.isdisjoint(names))
        for names in equal.values()
    ]


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


def fewest_input_fences(
    input_fences: Sequence[InputFence],
    fits: Callable[[frozenset[str]], bool],
    seen_with: Callable[[Sequence[InputFence]], frozenset[str]],
    deadline: Deadline,
) -> list[InputFence]:
    """Give up input fences as long as the budget holds with every node pinned (delta debugging).

    Args:
        input_fences: all of them; with all, the budget holds.
        fits: whether it holds when the runtime knows the shapes of the given tensors.
        seen_with: the tensors whose shapes it knows with the given input fences.
        deadline: when to stop.
    """
    fixed = [fence for fence in input_fences if fence.fixed]
    kept = [fence for fence in input_fences if not fence.fixed]
    if fits(seen_with(fixed)):
        return fixed
    chunk = max(1, len(kept) // 2)
    while True:
        spared, first = False, 0
        while first < len(kept):
            if deadline.passed:
                return fixed + kept
            trial = kept[:first] + kept[first + chunk :]
            if fits(seen_with(fixed + trial)):
                kept, spared = trial, True
            else:
                first += chunk
        if chunk == 1 and not spared:
            return fixed + kept
        chunk = max(1, chunk // 2)


def visible_with(
    model: onnx.ModelProto, types: Mapping[str, TensorType], input_fences: Sequence[InputFence]
) -> Callable[[Sequence[InputFence]], frozenset[str]]:
    """How the runtime sees ``model``, which has all ``input_fences``, with only some of them.

    An input fence that is given up is replaced by what it hides, under the name of its twin.
    """
    bare = without_weights(model, statements=False)
    contents = {tensor.name: tensor for tensor in bare.graph.initializer}
    inputs = {value.name: value for value in bare.graph.input}
    constants = {n.output[0]: n for n in bare.graph.node if n.op_type == "Constant"}

    def seen(kept: Sequence[InputFence]) -> frozenset[str]:
        gone = {fence.twin: fence.sources[0] for fence in input_fences}
        for fence in kept:
            del gone[fence.twin]
        variant = copied(bare)
        del variant.graph.node[:]
        for twin, source in gone.items():
            if source in contents:
                _add_renamed(variant.graph.initializer, contents[source], twin)
            elif source in inputs:
                _add_renamed(variant.graph.input, inputs[source], twin)
            else:
                constant = variant.graph.node.add()
                constant.CopyFrom(constants[source])
                constant.output[0] = twin
        variant.graph.node.extend(n for n in bare.graph.node if n.output[0] not in gone)
        return visible_names(variant, types)

    return seen


def _add_renamed(field: Any, value: Any, name: str) -> None:
    copy = field.add()
    copy.CopyFrom(value)
    copy.name = name
