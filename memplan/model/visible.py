"""Which shapes ONNX Runtime knows before it runs a model.

Its memory planner works in place and reuses buffers only where it knows the dimensions of both
tensors. It finds them as ONNX shape inference does, from what the file states, and by rules of its
own for the operators of ``com.microsoft``. Values are propagated through ``Shape`` and a ``Cast``
behind it, and no further (measured on 1.31.1: ``Shape → Gather → Concat → Reshape`` hides a shape).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx

from memplan.model.shapes import ValueType, is_complete, stated_types, without_weights

_ROUNDS = 8


def with_visibility(model: onnx.ModelProto, types: Mapping[str, ValueType]) -> dict[str, ValueType]:
    """``types``, with ``static`` false where the runtime does not know the dimensions.

    Args:
        model: dimensions bound, with the ``value_info`` that the file has.
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

    Operators that ONNX does not know are taken to show the shapes of their outputs as soon as the
    shapes of all their inputs are visible.

    Args:
        model: dimensions bound.
        types: element type and shape of every tensor, as memplan found them.
    """
    working = without_weights(model, statements=True)
    known: dict[str, tuple[int, ...]] = {}
    for _ in range(_ROUNDS):
        known = {**known, **_inferred(working)}
        foreign = _foreign_outputs(model, known, types)
        values = _shape_values(working, known)
        if not foreign and not values:
            break
        known.update(foreign)
        working.graph.value_info.extend(
            onnx.helper.make_tensor_value_info(name, types[name].dtype, shape)
            for name, shape in foreign.items()
        )
        _replace_by_constants(working.graph, values)
    return frozenset(known)


def _foreign_outputs(
    model: onnx.ModelProto,
    known: Mapping[str, tuple[int, ...]],
    types: Mapping[str, ValueType],
) -> dict[str, tuple[int, ...]]:
    """Outputs of operators that ONNX does not know, all of whose inputs are visible."""
    return {
        name: shape
        for node in model.graph.node
        if node.domain not in ("", "ai.onnx") and all(i in known for i in node.input if i)
        for name in node.output
        if name and name not in known
        and name in types and types[name].dtype and (shape := types[name].shape) is not None
    }  # fmt: skip


def _shape_values(
    model: onnx.ModelProto, known: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Values of ``Shape`` nodes of visible tensors, and of Casts of them."""
    values: dict[str, tuple[int, ...]] = {}
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx"):
            continue
        if node.op_type == "Shape" and node.input[0] in known:
            shape = known[node.input[0]]
            bounds = {item.name: item.i for item in node.attribute}
            values[node.output[0]] = shape[bounds.get("start", 0) : bounds.get("end", len(shape))]
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
        onnx.helper.make_tensor(name, onnx.TensorProto.INT64, [len(value)], value)
        for name, value in values.items()
    )


def _inferred(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors whose dimensions are all numbers after inference."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=False)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError, MemoryError):
        inferred = model
    return {
        name: value.shape
        for name, value in stated_types(inferred.graph).items()
        if value.shape is not None and value.dtype
    }
