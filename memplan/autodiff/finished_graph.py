"""What is left to do on a training graph once it is made.

A user's forward graph may have nodes that ONNX Runtime computes wrongly or cannot run
(:mod:`memplan.ops.sharp_edges`, :mod:`memplan.ops.float_types`), and what is written from it must
not:

1. the vector behind a transposed matrix is written as a column;
2. a ``Pad`` of zeros in front of a pool names its axes, which keeps the runtime from fusing them;
3. what is scattered with a reduction in float16 or bfloat16 is so in float32;
4. from the optimization level BASIC on, the runtime (1.31.1) takes a ``Dropout`` whose mask is not
   read for one of inference, whatever its ``training_mode`` says. In a training graph that is one
   that no gradient flows through, as that of a teacher. There, a ``Where`` reads the mask.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from memplan.errors import MemplanError
from memplan.ops.float_types import unsupported_kernels
from memplan.ops.kernels import kernels_of
from memplan.ops.sharp_edges import Edge, sharp_edges
from memplan.proto import native
from memplan.proto.edit import replace_nodes
from memplan.proto.metadata import set_metadata
from memplan.proto.model_checks import find_fault
from memplan.proto.names import NameAuthority, defined_names
from memplan.proto.nodes import all_nodes, is_standard, names_read, subgraphs
from memplan.proto.opset import allow_initializers, default_opset, schema_of
from memplan.shapes.one_node import is_function
from memplan.shapes.prepare import inline_functions, name_nodes

_SCATTERS = ("ScatterElements", "ScatterND")
_TYPES = {"float16": onnx.TensorProto.FLOAT16, "bfloat16": onnx.TensorProto.BFLOAT16}
Key = tuple[str, str]
"""A node by its operator and its first output."""


def finished(model: onnx.ModelProto, *, portable: bool = False) -> onnx.ModelProto:
    """The training graph with names for all nodes, checked.

    Function operators that no runtime has a kernel for are inlined, so that its order stays the
    file's, and if it is to be ``portable`` those that WebGPU has none for (``LogSoftmax``); what
    ONNX Runtime would compute wrongly is written otherwise.

    Raises:
        MemplanError: the ONNX checker refuses the result; our bug.
    """
    model, _ = inline_functions(model)
    if portable:
        ops = {n.op_type for n in all_nodes(model.graph.node) if is_standard(n.domain)}
        schemas = {op: schema_of("", op, default_opset(model)) for op in ops}
        written = [op for op, found in schemas.items() if found and is_function(found)]
        without = sorted(op for op in written if f":{op}" not in kernels_of("webgpu").rows)
        model = native.inline_functions(model, without) if without else model
    name_nodes(model.graph)
    without_known_faults(model)
    set_metadata(model, {})  # what memplan noted in the forward graph is not true of this one
    fault = find_fault(model)
    if fault is not None:
        raise MemplanError(
            f"the training graph was rejected: {fault}",
            "nothing was written; please report this with the model",
        )
    return model


def without_known_faults(model: onnx.ModelProto) -> None:
    """Write nodes that the runtime gets wrong otherwise, in place."""
    nodes = list(all_nodes(model.graph.node))
    edges = {(found.op, found.output): found.edge for found in sharp_edges(model)}
    narrow: dict[Key, int] = {}
    if any(node.op_type in _SCATTERS for node in nodes):
        narrow = {
            (found.op, found.output): _TYPES[found.dtype]
            for found in unsupported_kernels(model)
            if found.op in _SCATTERS and found.dtype in _TYPES
        }
    lost = _lost_dropouts(model.graph)
    if narrow or lost or {Edge.VECTOR, Edge.POOL} & set(edges.values()):
        allow_initializers(model)
        names = NameAuthority((*defined_names(model.graph), *(node.name for node in nodes)))
        _Mending(names, edges, narrow, lost).walk(model.graph)


def _lost_dropouts(graph: onnx.GraphProto) -> dict[Key, int]:
    """Dropouts of the main graph that draw a mask which is not read, and their element type, where
    it is known."""
    read = names_read(graph.node) | {value.name for value in graph.output}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*graph.input, *graph.value_info, *graph.output)
    }
    found = {}
    for node in graph.node:
        if node.op_type != "Dropout" or not is_standard(node.domain) or len(node.input) < 3:
            continue
        ratio, training = node.input[1:3]
        unread = len(node.output) < 2 or node.output[1] not in read
        known = training in constants and (not ratio or ratio in constants)
        if unread and known and numpy_helper.to_array(constants[training]):
            found[node.op_type, node.output[0]] = types.get(node.input[0], 0)
    return {key: kind for key, kind in found.items() if kind}


class _Mending:
    """Writes nodes otherwise, in all graphs of a model; methods are called as at the head."""

    def __init__(
        self,
        names: NameAuthority,
        edges: Mapping[Key, Edge],
        narrow: Mapping[Key, int],
        lost: Mapping[Key, int],
    ) -> None:
        self.names = names
        self.edges, self.narrow, self.lost = edges, narrow, lost

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
            elif key in self.lost:
                made += self._with_read_mask(graph, node, self.lost[key])
            else:
                made.append(node)
        if len(made) > len(graph.node):
            replace_nodes(graph, made)

    def _column(self, graph: onnx.GraphProto, node: onnx.NodeProto) -> list[onnx.NodeProto]:
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
        pad = makers[node.input[0]]
        while pad.op_type == "Identity":
            pad = makers[pad.input[0]]
        rank = 2 + len(next(item.ints for item in node.attribute if item.name == "kernel_shape"))
        pad.input.extend([""] * (3 - len(pad.input)))
        del pad.input[3:]
        pad.input.append(self._constant(graph, np.arange(rank, dtype=np.int64)))

    def _widened(self, node: onnx.NodeProto, dtype: int) -> list[onnx.NodeProto]:
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

    def _with_read_mask(
        self, graph: onnx.GraphProto, node: onnx.NodeProto, kind: int
    ) -> list[onnx.NodeProto]:
        zero, mask, whole = (
            self.names.fresh(f"{node.name}/{n}") for n in ("zero", "mask", "whole")
        )
        array = np.zeros((), helper.tensor_dtype_to_np_dtype(kind))
        graph.initializer.append(numpy_helper.from_array(array, zero))
        result = node.output[0]
        node.output[:] = [whole, mask]
        return [node, self._like(node, "Where", [mask, whole, zero], [result], mask)]

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
