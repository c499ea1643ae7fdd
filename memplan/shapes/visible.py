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

import onnx
from onnx import helper

from memplan.shapes.infer import ValueType, is_complete, stated_types, without_weights

Dims = tuple[int | str, ...]
_ROUNDS = 8
# Fused operators whose outputs have the shape of the standard operator's.
_STANDARD = {"FusedConv": "Conv", "FusedGemm": "Gemm", "BiasGelu": "Add", "BiasAdd": "Add"}
_ELEMENTWISE = frozenset({"Gelu", "FastGelu", "QuickGelu", "SkipLayerNormalization"})
_ATTRIBUTES = {
    "Conv": frozenset({"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}),
    "Gemm": frozenset({"alpha", "beta", "transA", "transB"}),
}


def with_visibility(model: onnx.ModelProto, types: Mapping[str, ValueType]) -> dict[str, ValueType]:
    """``types``, with ``static`` false where the runtime does not know the dimensions.

    Args:
        model: with the ``value_info`` that the file has; dimensions that are not bound stay
            unknown to the runtime too.
        types: element type and shape of every tensor, as memplan found them.
    """
    if is_complete(model.graph, stated_types(model.graph)):
        return dict(types)
    visible = visible_names(model, types)
    return {
        name: value if name in visible or not value.dtype else replace(value, static=False)
        for name, value in types.items()
    }


def visible_names(model: onnx.ModelProto, types: Mapping[str, ValueType]) -> frozenset[str]:
    """Names of the tensors whose dimensions the runtime knows when it loads ``model``.

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
    known: dict[str, Dims] = {}
    for _ in range(_ROUNDS):
        known = {**known, **_inferred(working, symbols)}
        foreign = _foreign_outputs(working, known, types)
        values = _shape_values(working, known)
        if not foreign and not values:
            break
        known.update(foreign)
        for value in working.graph.value_info:
            if value.name in foreign:
                value.type.CopyFrom(
                    helper.make_tensor_type_proto(types[value.name].dtype, foreign[value.name])
                )
        _replace_by_constants(working.graph, values)
    return frozenset(known)


def _symbols(graph: onnx.GraphProto) -> set[str]:
    """Names of dimensions that the file itself uses; inference makes up further ones."""
    return {
        dim.dim_param
        for value in (*graph.input, *graph.output, *graph.value_info)
        for dim in value.type.tensor_type.shape.dim
        if dim.dim_param
    }


def _translate(graph: onnx.GraphProto, types: Mapping[str, ValueType]) -> None:
    """Replace fused operators by standard ones whose outputs have the same shapes."""
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.domain == "com.microsoft":
            nodes.extend(_standard(node, types))
        else:
            nodes.append(onnx.NodeProto.FromString(node.SerializeToString()))
    del graph.node[:]
    graph.node.extend(nodes)


def _standard(node: onnx.NodeProto, types: Mapping[str, ValueType]) -> list[onnx.NodeProto]:
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


def _state_element_types(graph: onnx.GraphProto, types: Mapping[str, ValueType]) -> None:
    """Inference gives up behind operators that it does not know, unless it is told their types."""
    stated = {value.name for value in graph.value_info} | {value.name for value in graph.output}
    for node in _foreign(graph):
        for name in node.output:
            if name and name not in stated and name in types and types[name].dtype:
                graph.value_info.append(
                    helper.make_tensor_value_info(name, types[name].dtype, None)
                )


def _foreign(graph: onnx.GraphProto) -> Iterable[onnx.NodeProto]:
    return (node for node in graph.node if node.domain not in ("", "ai.onnx"))


def _foreign_outputs(
    model: onnx.ModelProto, known: Mapping[str, Dims], types: Mapping[str, ValueType]
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
        and (shape := types[name].shape) is not None
    }


def _shape_values(model: onnx.ModelProto, known: Mapping[str, Dims]) -> dict[str, tuple[int, ...]]:
    """Values of ``Shape`` nodes of tensors with known numbers, and of Casts of them."""
    values: dict[str, tuple[int, ...]] = {}
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx"):
            continue
        if node.op_type == "Shape" and node.input[0] in known:
            shape = known[node.input[0]]
            bounds = {item.name: item.i for item in node.attribute}
            part = shape[bounds.get("start", 0) : bounds.get("end", len(shape))]
            numbers = tuple(dim for dim in part if isinstance(dim, int))
            if len(numbers) == len(part):
                values[node.output[0]] = numbers
        elif node.op_type == "Cast" and node.input[0] in values and _to_int64(node):
            values[node.output[0]] = values[node.input[0]]
    return values


def _to_int64(node: onnx.NodeProto) -> bool:
    return any(item.name == "to" and item.i == onnx.TensorProto.INT64 for item in node.attribute)


def _replace_by_constants(graph: onnx.GraphProto, values: Mapping[str, tuple[int, ...]]) -> None:
    kept = [node for node in graph.node if not (node.output and node.output[0] in values)]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(copies)
    graph.initializer.extend(
        helper.make_tensor(name, onnx.TensorProto.INT64, [len(value)], value)
        for name, value in values.items()
    )


def _inferred(model: onnx.ModelProto, symbols: set[str]) -> dict[str, Dims]:
    """Shapes of the tensors whose dimensions are all known after inference."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=False)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError, MemoryError):
        inferred = model
    graph = inferred.graph
    found: dict[str, Dims] = {
        name: value.shape
        for name, value in stated_types(graph).items()
        if value.shape is not None and value.dtype
    }
    for value in (*graph.input, *graph.output, *graph.value_info):
        dims = _dims(value.type.tensor_type, symbols)
        if dims is not None:
            found[value.name] = dims
    return found


def _dims(tensor: onnx.TypeProto.Tensor, symbols: set[str]) -> Dims | None:
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
