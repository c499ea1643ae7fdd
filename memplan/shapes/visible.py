"""Which shapes ONNX Runtime knows before it runs a model.

Its memory planner works in place and reuses buffers only where it knows the dimensions of both
tensors, as numbers or as the same symbols. It finds them as ONNX shape inference does, from what
the file states, and by rules of its own for the operators of ``com.microsoft``. Values are
propagated through ``Shape`` and a ``Cast`` behind it, and no further (measured on 1.31.1:
``Shape → Gather → Concat → Reshape`` hides a shape).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper

from memplan.proto.edit import replace_nodes
from memplan.proto.nodes import is_standard
from memplan.shapes.infer import (
    ROUNDS,
    Array,
    declared_values,
    is_complete,
    replace_by_constants,
    run_inference,
    stated_types,
    without_weights,
)
from memplan.shapes.tensor_type import Shape, TensorType, Types, write_type

# Fused operators whose outputs have the shape of the standard operator's.
_STANDARD = {"FusedConv": "Conv", "FusedGemm": "Gemm", "BiasGelu": "Add", "BiasAdd": "Add"}
_ELEMENTWISE = frozenset({"Gelu", "FastGelu", "QuickGelu", "SkipLayerNormalization"})
# Between device and host: ONNX does not know them, the runtime hands type and shape on.
_COPIES = frozenset({"MemcpyToHost", "MemcpyFromHost"})
_ATTRIBUTES = {
    "Conv": frozenset({"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}),
    "Gemm": frozenset({"alpha", "beta", "transA", "transB"}),
}


def with_visibility(model: onnx.ModelProto, types: Types) -> dict[str, TensorType]:
    """``types`` as the runtime sees them: dimensions unknown, by number, or by symbol.

    Args:
        model: with the ``value_info`` that the file has; dimensions that are not bound stay
            unknown to the runtime too.
        types: element type and shape of every tensor, as memplan found them.
    """
    if is_complete(model.graph, stated_types(model.graph)):
        return dict(types)
    visible = visible_shapes(model, types)
    return {name: _as_seen(value, visible.get(name)) for name, value in types.items()}


def _as_seen(value: TensorType, shape: Shape | None) -> TensorType:
    """A type, if the runtime knows ``shape`` (None: no shape) of it."""
    if not value.dtype:
        return value
    if shape is None:
        return replace(value, static=False)
    named = any(isinstance(dim, str) for dim in shape)
    return replace(value, seen=shape) if named else value


def visible_names(model: onnx.ModelProto, types: Types) -> frozenset[str]:
    """Names of the tensors of :func:`visible_shapes`."""
    return frozenset(visible_shapes(model, types))


def visible_shapes(model: onnx.ModelProto, types: Types) -> Mapping[str, Shape]:
    """Dimensions of the tensors whose dimensions the runtime knows when it loads ``model``.

    Operators that neither ONNX nor this module knows are taken to show the shapes of their outputs
    as soon as the shapes of all their inputs are visible.

    Args:
        model: as for :func:`with_visibility`.
        types: element type and shape of every tensor, as memplan found them.
    """
    working = without_weights(model, statements=True)
    _translate(working.graph, types)
    _state_element_types(working.graph, types)
    symbols = _symbols(model.graph)
    known: dict[str, Shape] = {}
    for _ in range(ROUNDS):
        known = {**known, **_inferred(working, symbols)}
        foreign = _foreign_outputs(working, known, types)
        values = _shape_values(working, known)
        if not foreign and not values:
            break
        known.update(foreign)
        for value in working.graph.value_info:
            if value.name in foreign:
                found = TensorType(types[value.name].dtype, foreign[value.name])
                value.type.CopyFrom(write_type(found))
        replace_by_constants(working.graph, values)
    return known


def _symbols(graph: onnx.GraphProto) -> set[str]:
    """Names of dimensions that the file itself uses; inference makes up further ones."""
    return {
        dim.dim_param
        for value in declared_values(graph)
        for dim in value.type.tensor_type.shape.dim
        if dim.dim_param
    }


def _translate(graph: onnx.GraphProto, types: Types) -> None:
    """Replace fused operators by standard ones whose outputs have the same shapes."""
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.domain == "com.microsoft":
            nodes.extend(_standard(node, types))
        elif node.op_type in _COPIES and is_standard(node.domain):
            nodes.append(helper.make_node("Identity", node.input[:1], node.output[:1]))
        else:
            nodes.append(node)
    replace_nodes(graph, nodes)


def _standard(node: onnx.NodeProto, types: Types) -> list[onnx.NodeProto]:
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    outputs = list(node.output[:1])
    if node.op_type in _ELEMENTWISE and len(node.output) == 1:
        return [helper.make_node("Identity", node.input[:1], outputs)]
    if node.op_type in _STANDARD:
        op = _STANDARD[node.op_type]
        kept = {k: v for k, v in attributes.items() if k in _ATTRIBUTES.get(op, ())}
        return [helper.make_node(op, node.input[: 2 if op == "Add" else 3], outputs, **kept)]
    batched = attributes.get("transBatchA") or attributes.get("transBatchB")
    if node.op_type != "FusedMatMul" or batched:
        return [node]
    result = []
    sides = []
    for name, flag in zip(node.input, ("transA", "transB"), strict=True):
        rank = len(types[name].shape or ()) if name in types else 0
        if attributes.get(flag) and rank > 1:
            turned = f"{outputs[0]}/{flag}"
            perm = [*range(rank - 2), rank - 1, rank - 2]
            result.append(helper.make_node("Transpose", [name], [turned], perm=perm))
            name = turned
        sides.append(name)
    return [*result, helper.make_node("MatMul", sides, outputs)]


def _state_element_types(graph: onnx.GraphProto, types: Types) -> None:
    """Inference gives up behind operators that it does not know, unless it is told their types."""
    stated = {value.name for value in graph.value_info} | {value.name for value in graph.output}
    for node in _foreign(graph):
        for name in node.output:
            if name and name not in stated and name in types and types[name].dtype:
                graph.value_info.append(
                    helper.make_tensor_value_info(name, types[name].dtype, None)
                )


def _foreign(graph: onnx.GraphProto) -> Iterable[onnx.NodeProto]:
    return (node for node in graph.node if not is_standard(node.domain))


def _foreign_outputs(
    model: onnx.ModelProto, known: Mapping[str, Shape], types: Types
) -> dict[str, tuple[int, ...]]:
    """Outputs of operators that ONNX does not know, all of whose inputs are visible."""
    return {
        name: shape
        for node in _foreign(model.graph)
        if all(i in known for i in node.input if i)
        for name in node.output
        if name
        and name not in known
        and name in types
        and types[name].dtype
        and (shape := types[name].sizes) is not None
    }


def _shape_values(model: onnx.ModelProto, known: Mapping[str, Shape]) -> dict[str, Array]:
    """Values of ``Shape`` nodes of tensors with known numbers, and of Casts of them."""
    values: dict[str, Array] = {}
    for node in model.graph.node:
        if not is_standard(node.domain):
            continue
        if node.op_type == "Shape" and node.input[0] in known:
            shape = known[node.input[0]]
            bounds = {item.name: item.i for item in node.attribute}
            part = shape[bounds.get("start", 0) : bounds.get("end", len(shape))]
            numbers = tuple(dim for dim in part if isinstance(dim, int))
            if len(numbers) == len(part):
                values[node.output[0]] = np.asarray(numbers, np.int64)
        elif node.op_type == "Cast" and node.input[0] in values and _to_int64(node):
            values[node.output[0]] = values[node.input[0]]
    return values


def _to_int64(node: onnx.NodeProto) -> bool:
    return any(item.name == "to" and item.i == onnx.TensorProto.INT64 for item in node.attribute)


def _inferred(model: onnx.ModelProto, symbols: set[str]) -> dict[str, Shape]:
    """Shapes of the tensors whose dimensions are all known after inference."""
    graph = run_inference(model).graph
    found: dict[str, Shape] = {
        name: value.shape
        for name, value in stated_types(graph).items()
        if value.shape is not None and value.dtype
    }
    for value in declared_values(graph):
        dims = _dims(value.type.tensor_type, symbols)
        if dims is not None:
            found[value.name] = dims
    return found


def _dims(tensor: onnx.TypeProto.Tensor, symbols: set[str]) -> Shape | None:
    if not tensor.elem_type or not tensor.HasField("shape"):
        return None
    dims: list[int | str] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value"):
            dims.append(dim.dim_value)
        elif dim.dim_param in symbols:
            dims.append(dim.dim_param)
        else:
            return None
    return tuple(dims)
