"""The last look at a training graph: no node that ONNX Runtime computes wrongly, or cannot run.

A user's forward graph may have such nodes, and what is written from it must not
(:mod:`memplan.ops.sharp_edges`, :mod:`memplan.ops.float_types`):

1. the vector behind a transposed matrix is written as a column;
2. a ``Pad`` of zeros in front of a pool names its axes, which keeps the runtime from fusing them;
3. what is scattered with a reduction in float16 or bfloat16 is so in float32.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from memplan.ops.float_types import unsupported_kernels
from memplan.ops.sharp_edges import Edge, sharp_edges
from memplan.proto.edit import replace_nodes
from memplan.proto.names import NameAuthority, defined_names
from memplan.proto.nodes import all_nodes, subgraphs
from memplan.proto.opset import allow_initializers

_SCATTERS = ("ScatterElements", "ScatterND")
_TYPES = {"float16": onnx.TensorProto.FLOAT16, "bfloat16": onnx.TensorProto.BFLOAT16}
Key = tuple[str, str]
"""A node by its operator and its first output."""


def make_blunt(model: onnx.ModelProto) -> None:
    """Write such nodes otherwise, in place."""
    nodes = list(all_nodes(model.graph.node))
    edges = {(found.op, found.output): found.edge for found in sharp_edges(model)}
    narrow: dict[Key, int] = {}
    if any(node.op_type in _SCATTERS for node in nodes):
        narrow = {
            (found.op, found.output): _TYPES[found.dtype]
            for found in unsupported_kernels(model)
            if found.op in _SCATTERS and found.dtype in _TYPES
        }
    if narrow or {Edge.VECTOR, Edge.POOL} & set(edges.values()):
        allow_initializers(model)
        names = NameAuthority((*defined_names(model.graph), *(node.name for node in nodes)))
        _Remaking(names, edges, narrow).walk(model.graph)


class _Remaking:
    """Writes nodes otherwise, in all graphs of a model."""

    def __init__(
        self, names: NameAuthority, edges: Mapping[Key, Edge], narrow: Mapping[Key, int]
    ) -> None:
        self.names = names
        self.edges = edges
        self.narrow = narrow

    def walk(self, graph: onnx.GraphProto) -> None:
        """A graph and its bodies, in place."""
        makers = {name: node for node in graph.node for name in node.output if name}
        for node in graph.node:
            for body in subgraphs(node):
                self.walk(body)
            if self.edges.get((node.op_type, node.output[0])) is Edge.POOL:
                self._pool(graph, node, makers)
        made: list[onnx.NodeProto] = []
        for node in graph.node:
            key = (node.op_type, node.output[0])
            if self.edges.get(key) is Edge.VECTOR:
                made += self._column(graph, node)
            elif key in self.narrow:
                made += self._widened(node, self.narrow[key])
            else:
                made.append(node)
        if len(made) > len(graph.node):
            replace_nodes(graph, made)

    def _column(self, graph: onnx.GraphProto, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """1. of the head."""
        matrix, vector = node.input
        column, product = self._new(vector, "column"), self._new(node.output[0], "column")
        axis = self._constant(graph, np.array([1], np.int64))
        end = self._constant(graph, np.array([-1], np.int64))
        return [
            self._like(node, "Unsqueeze", [vector, axis], [column]),
            self._like(node, "MatMul", [matrix, column], [product], node.name),
            self._like(node, "Squeeze", [product, end], [node.output[0]]),
        ]

    def _pool(
        self, graph: onnx.GraphProto, node: onnx.NodeProto, makers: dict[str, onnx.NodeProto]
    ) -> None:
        """2. of the head."""
        pad = makers[node.input[0]]
        while pad.op_type == "Identity":
            pad = makers[pad.input[0]]
        rank = 2 + len(next(item.ints for item in node.attribute if item.name == "kernel_shape"))
        pad.input.extend([""] * (3 - len(pad.input)))
        del pad.input[3:]
        pad.input.append(self._constant(graph, np.arange(rank, dtype=np.int64)))

    def _widened(self, node: onnx.NodeProto, dtype: int) -> list[onnx.NodeProto]:
        """3. of the head."""
        base, indices, updates = node.input
        wide = [self._new(name, "wide") for name in (base, updates, node.output[0])]
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        return [
            self._like(node, "Cast", [base], [wide[0]], to=onnx.TensorProto.FLOAT),
            self._like(node, "Cast", [updates], [wide[1]], to=onnx.TensorProto.FLOAT),
            self._like(
                node, node.op_type, [wide[0], indices, wide[1]], [wide[2]], node.name, **attributes
            ),
            self._like(node, "Cast", [wide[2]], [node.output[0]], to=dtype),
        ]

    def _like(
        self,
        like: onnx.NodeProto,
        op: str,
        inputs: list[str],
        outputs: list[str],
        name: str = "",
        **attributes: object,
    ) -> onnx.NodeProto:
        """A node of the same phase and module as another."""
        name = name or self._new(like.name, op)
        made = helper.make_node(op, inputs, outputs, name=name)
        made.attribute.extend(helper.make_attribute(key, attributes[key]) for key in attributes)
        made.metadata_props.extend(like.metadata_props)
        return made

    def _constant(self, graph: onnx.GraphProto, value: npt.NDArray[np.int64]) -> str:
        name = self._new("axes", "")
        graph.initializer.append(numpy_helper.from_array(value, name))
        return name

    def _new(self, name: str, what: str) -> str:
        return self.names.fresh(f"{name}__{what}" if what else name)
