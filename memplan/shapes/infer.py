"""ONNX shape inference: what it is given, and what it finds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from memplan.errors import ModelError
from memplan.proto import native
from memplan.proto.bare import without_weights
from memplan.proto.edit import replace_nodes
from memplan.proto.nodes import is_constant
from memplan.shapes.tensor_type import UNKNOWN, TensorType, Types, read_type

Array = npt.NDArray[np.generic]
"""What a constant holds."""

INVENTED = "unk__"
"""How ONNX's inference begins the names of dimensions that it does not know."""
GIVES_UP = (onnx.shape_inference.InferenceError, ValueError, RuntimeError, MemoryError)


def infer(bound: onnx.ModelProto) -> onnx.ModelProto:
    """ONNX shape inference, with data propagation where it does not tell all shapes without; what
    is stated where inference gives up.

    Values of long vectors (a flat buffer of parameters) take a hundred times their size, for which
    there is no room in the child of :mod:`memplan.proto.native`.
    """
    model = without_weights(bound, statements=True)
    plain = run_inference(model)
    if is_complete(plain.graph, stated_types(plain.graph)):
        return plain
    try:
        return native.infer_shapes(model, propagate=True)
    except (*GIVES_UP, ModelError):  # it may die where there is no room
        return plain


def run_inference(model: onnx.ModelProto) -> onnx.ModelProto:
    """ONNX shape inference; the model itself where it gives up."""
    try:
        return native.infer_shapes(model)
    except GIVES_UP:
        return model


def stated_types(graph: onnx.GraphProto) -> dict[str, TensorType]:
    """Types and shapes that the graph itself declares; shape None where a dim is not a number."""
    found: dict[str, TensorType] = {}
    for value in declared_values(graph):
        found[value.name] = numeric_type(value.type.SerializeToString())
    for tensor in graph.initializer:
        found[tensor.name] = TensorType(tensor.data_type, tuple(tensor.dims))
    for sparse in graph.sparse_initializer:
        found[sparse.values.name] = TensorType(sparse.values.data_type, tuple(sparse.dims))
    for node in graph.node:
        if is_constant(node) and node.output[0] not in found:
            constant = constant_type(node)
            if constant is not None:
                found[node.output[0]] = constant
    return found


def constant_type(node: onnx.NodeProto) -> TensorType | None:
    """Type and shape of a ``Constant`` node's output, whatever attribute holds it."""
    attribute = node.attribute[0] if node.attribute else None
    if attribute is None:
        return None
    lengths: dict[str, tuple[int, tuple[int, ...]]] = {
        "value_float": (onnx.TensorProto.FLOAT, ()),
        "value_int": (onnx.TensorProto.INT64, ()),
        "value_string": (onnx.TensorProto.STRING, ()),
        "value_floats": (onnx.TensorProto.FLOAT, (len(attribute.floats),)),
        "value_ints": (onnx.TensorProto.INT64, (len(attribute.ints),)),
        "value_strings": (onnx.TensorProto.STRING, (len(attribute.strings),)),
        "value": (attribute.t.data_type, tuple(attribute.t.dims)),
        "sparse_value": (
            attribute.sparse_tensor.values.data_type,
            tuple(attribute.sparse_tensor.dims),
        ),
    }
    found = lengths.get(attribute.name)
    return TensorType(*found) if found else None


@lru_cache(maxsize=4096)
def numeric_type(data: bytes) -> TensorType:
    """The type in these bytes; the shape is None unless every dimension is a number. The many
    values of a graph have few types."""
    proto = onnx.TypeProto.FromString(data)
    if proto.WhichOneof("value") is None:
        return UNKNOWN
    if not proto.HasField("tensor_type"):
        return TensorType(0, ())
    found = read_type(proto)
    return TensorType(found.dtype, found.sizes if found.dtype else None)


def is_complete(graph: onnx.GraphProto, types: Types) -> bool:
    """Whether every computed tensor of the main graph has a shape in ``types``."""
    for node in graph.node:
        for name in node.output:
            if name and types.get(name, UNKNOWN).shape is None:
                return False
    return True


def state_types(graph: onnx.GraphProto, types: Types) -> None:
    """State in ``value_info`` the sizes in ``types`` of all computed tensors, in place; the
    interface stays as it is."""
    declared = {value.name for value in (*graph.input, *graph.output)}
    made = (name for node in graph.node for name in node.output if name not in declared)
    known = {name: types[name] for name in made if name in types}
    known = {name: each for name, each in known.items() if each.dtype and each.sizes is not None}
    kept = [value for value in graph.value_info if value.name not in known]
    stated = [
        onnx.helper.make_tensor_value_info(name, each.dtype, each.sizes)
        for name, each in known.items()
    ]
    del graph.value_info[:]
    graph.value_info.extend((*kept, *stated))


def declared_values(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    """Everything to which the graph gives a type by name."""
    yield from graph.input
    yield from graph.output
    yield from graph.value_info


def replace_by_constants(graph: onnx.GraphProto, values: Mapping[str, Array]) -> None:
    """Let initializers stand for nodes whose first output is known, in place."""
    replace_nodes(graph, (n for n in graph.node if not n.output or n.output[0] not in values))
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in values.items())
