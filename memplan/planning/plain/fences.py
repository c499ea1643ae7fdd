"""Fences: tensors that the runtime cannot see through, at no cost in memory.

``Unsqueeze(x, axes)`` with no axes is ``x`` itself: no copy, any rank and type. If ``axes`` is
computed while the model runs (``Mul`` of the ``Size`` of some input and an empty constant), the
runtime's optimizer can neither fold it nor tell that there are no axes. So

- a recomputed node that reads a *fence* is no duplicate of its original: common-subexpression
  elimination leaves it alone;
- behind an *input fence* (the same on a graph input or a constant) shapes are unknown: the memory
  planner reuses no buffer there, which would keep dead memory alive, and constant folding stops.

Measured on ONNX Runtime 1.31.1 at every optimization level (tests/ort/test_plain_sessions.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

import onnx
from onnx import helper

from memplan.errors import UsageError
from memplan.proto.edit import copied
from memplan.proto.metadata import CHUNK_KEY, node_metadata
from memplan.proto.nodes import is_standard

OLDEST_OPSET = 13
"""``Unsqueeze`` takes its axes as an input from this opset on."""

_PREFIX = "memplan/"
INPUT_FENCE = "veil"
"""The role of input fences in files, from when they had a name of their own."""
_NEVER = 1 << 30


@dataclass(slots=True)
class FenceMaker:
    """Makes fences for one graph, and the axes that they share.

    ``nodes`` compute the axes and must stand before everything else. Two fences on the same tensor
    need different axes, or they would be merged; each further one is ``Mul`` of the one before.
    What is added has names that begin with ``prefix``, as nothing in the graph does.
    """

    source: str
    prefix: str = _PREFIX
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    axes: list[str] = field(default_factory=list)

    @property
    def no_axes(self) -> str:
        """The name of the empty constant."""
        return f"{self.prefix}no_axes"

    def axes_for(self, generation: int) -> str:
        """Axes that differ from those of every other generation."""
        size = f"{self.prefix}size"
        if not self.nodes:
            self.nodes.append(marked("axes", "Size", [self.source], size))
        while len(self.axes) <= generation:
            before = self.axes[-1] if self.axes else size
            name = f"{self.prefix}axes_{len(self.axes)}"
            self.nodes.append(marked("axes", "Mul", [before, self.no_axes], name))
            self.axes.append(name)
        return self.axes[generation]

    def hide(self, tensor: str, generation: int, role: str) -> onnx.NodeProto:
        """The node that makes the hidden twin of ``tensor``."""
        name = f"{self.prefix}{role}_{generation}/{tensor}"
        return marked(role, "Unsqueeze", [tensor, self.axes_for(generation)], name)

    def constants(self) -> list[onnx.TensorProto]:
        """Initializers that the nodes need."""
        if not self.nodes:
            return []
        return [helper.make_tensor(self.no_axes, onnx.TensorProto.INT64, [0], [])]


def fence_maker(graph: onnx.GraphProto) -> FenceMaker:
    """A maker whose axes come from a graph input that a run must give.

    Raises:
        UsageError: there is none: the runtime may compute the whole graph when it loads it.
    """
    initialized = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        if value.name not in initialized and value.type.HasField("tensor_type"):
            return FenceMaker(value.name, unused_prefix(graph))
    raise UsageError(
        "plans for plain default sessions need a graph input",
        "use --session tuned and load the result with memplan.load(path)",
    )


def unused_prefix(graph: onnx.GraphProto) -> str:
    """What no name of the graph begins with: a file that was made for a plain session, and is to be
    made once more, has fences."""
    names = {tensor.name for tensor in graph.initializer}
    names.update(name for node in graph.node for name in (node.name, *node.output))
    prefixes = itertools.chain([_PREFIX], (f"{_PREFIX}{k}/" for k in itertools.count(2)))
    return next(p for p in prefixes if not any(name.startswith(p) for name in names))


def marked(role: str, op: str, inputs: list[str], output: str) -> onnx.NodeProto:
    """A node that memplan adds, named like its output; its role stands in its metadata."""
    node = helper.make_node(op, inputs, [output], name=output)
    helper.set_metadata_props(node, {"memplan.role": role})
    return node


def is_ours(node: onnx.NodeProto) -> bool:
    """Whether memplan added the node and it computes nothing of the model."""
    return node_metadata(node).get("memplan.role") in ("axes", "fence", INPUT_FENCE, "pin")


def fence_clones(
    nodes: Iterable[onnx.NodeProto], maker: FenceMaker
) -> tuple[list[onnx.NodeProto], int]:
    """The nodes, with fences before recomputed ones that would be merged with what they repeat, and
    before those of chunks that would be with those of others.

    Walks the nodes as the optimizer's value numbering does (operator, attributes and the values
    read): such a node whose number is taken reads its first input through a fence. Those that read
    results of it then have numbers of their own. Slices of one tensor would become one Split that
    makes all chunks at once, so all but the first read it through fences of their own.

    Args:
        nodes: in file order; recomputed ones are marked. They are changed in place.
        maker: makes the fences.

    Returns:
        All nodes in file order, and how many fences there are among them.
    """
    numbers: dict[str, int] = {}
    values: dict[object, int] = {}
    fences: dict[tuple[str, int], str] = {}
    cuts: dict[str, int] = {}
    result: list[onnx.NodeProto] = []
    fresh = itertools.count()

    def key(node: onnx.NodeProto) -> object:
        attributes = sorted(a.SerializeToString(deterministic=True) for a in node.attribute)
        inputs = tuple(numbers.setdefault(name, next(fresh)) for name in node.input)
        return node.domain, node.op_type, inputs, tuple(attributes)

    def behind_fence(source: str, generation: int) -> str:
        if generation and (source, generation) not in fences:
            made = maker.hide(source, generation, "fence")
            fences[source, generation] = made.output[0]
            result.append(made)
        return fences.get((source, generation), source)

    for node in nodes:
        place = next((slot for slot, _ in data_inputs(node)), None)
        in_chunks = CHUNK_KEY in node_metadata(node)
        if place is not None and (in_chunks or _is_recomputed(node)):
            source, first = node.input[place], 0
            if in_chunks and node.op_type == "Slice":
                first = cuts.get(source, 0)
                cuts[source] = first + 1
            for generation in itertools.count(first):
                node.input[place] = behind_fence(source, generation)
                if (key(node), 0) not in values:
                    break
        value = key(node)
        for slot, name in enumerate(node.output):
            numbers[name] = values.setdefault((value, slot), next(fresh))
        result.append(node)
    return result, len(fences)


def _is_recomputed(node: onnx.NodeProto) -> bool:
    return node_metadata(node).get("memplan.role") == "recompute"


# Nodes that the runtime changes when it knows the dimensions of what they read: Shape is folded;
# pools go over to another layout on the CPU, between nodes that run out of order.
DIMENSION_READERS = frozenset(
    {"Shape", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"}
)


def hide_dimensions(
    nodes: Iterable[onnx.NodeProto], outside: Container[str], maker: FenceMaker
) -> list[onnx.NodeProto]:
    """The nodes, with input fences before those that the runtime would change.

    Args:
        nodes: in file order; changed in place.
        outside: graph inputs and constants, which get input fences of their own.
        maker: makes the input fences.
    """
    hidden: dict[str, str] = {}
    result: list[onnx.NodeProto] = []
    for node in nodes:
        if node.op_type in DIMENSION_READERS and is_standard(node.domain):
            name = node.input[0]
            if name not in outside and name not in hidden:
                fence = maker.hide(name, 0, INPUT_FENCE)
                hidden[name] = fence.output[0]
                result.append(fence)
            node.input[0] = hidden.get(name, name)
        result.append(node)
    return result


# Inputs that say how to compute rather than what with. ONNX shape inference and some kernels expect
# constants there: a Slice whose axes alone are unknown is taken to slice the first ones.
_PARAMETERS = {
    **dict.fromkeys(("Clip", "CumSum", "Dropout", "OneHot", "Pad", "Resize", "Slice"), 1),
    **dict.fromkeys(("Split", "Squeeze", "Tile", "TopK", "Trilu", "Unsqueeze", "Upsample"), 1),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear", "BitShift", "DFT", "Col2Im"), 1),
    **dict.fromkeys(("If", "Loop", "Scan", "Range", "SplitToSequence", "SequenceAt"), 0),
}


def data_inputs(node: onnx.NodeProto) -> list[tuple[int, str]]:
    """Slots and names of the inputs that a node computes with, parameters left out."""
    first = 1 if node.op_type.startswith("Reduce") else _PARAMETERS.get(node.op_type, _NEVER)
    return [(slot, name) for slot, name in enumerate(node.input) if name and slot < first]


def read_instead(nodes: Iterable[onnx.NodeProto], names: Mapping[str, str]) -> list[onnx.NodeProto]:
    """Copies of the nodes that compute with ``names[x]`` where they compute with ``x``."""
    result = []
    for node in nodes:
        copy = copied(node)
        for slot, name in data_inputs(node):
            if name in names:
                copy.input[slot] = names[name]
        result.append(copy)
    return result
