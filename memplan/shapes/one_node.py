"""ONNX shape inference of one operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import onnx
from onnx import helper, numpy_helper

from memplan.proto import native
from memplan.proto.nodes import domain_of
from memplan.shapes.infer import Array
from memplan.shapes.tensor_type import UNKNOWN, TensorType, read_type, write_type

_POOLS = frozenset({"MaxPool", "AveragePool", "LpPool"})


@cache
def schema_of(domain: str, op: str, opset: int) -> onnx.defs.OpSchema | None:
    """ONNX's definition of an operator at an opset of its domain, or None."""
    try:
        return onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        return None


def infer_types(
    node: onnx.NodeProto,
    types: Mapping[str, TensorType],
    constants: Mapping[str, Array],
    opset: int,
    ir_version: int = 10,
    *,
    apart: bool = False,
) -> tuple[TensorType, ...]:
    """ONNX shape inference of one node of the default domain; unknown where it gives up.

    ``apart``: the node comes from a file, and inference might die of it (see
    :mod:`memplan.proto.native`); of nodes that rules make it does not.

    Raises:
        onnx.shape_inference.InferenceError: the inputs do not fit the operator.
    """
    unknown = (UNKNOWN,) * len(node.output)
    domain = domain_of(node)
    schema = schema_of(domain, node.op_type, opset) if domain == "" else None
    if schema is None:
        return unknown
    given = {name for name in node.input if name}
    if any(types.get(name, UNKNOWN).dtype == 0 for name in given):
        return unknown
    protos = {name: write_type(types[name]) for name in given}
    data = {
        name: numpy_helper.from_array(constants[name], name)
        for name in given
        if name in constants and (constants[name].dtype.kind in "iu" or constants[name].size == 1)
    }
    imports = [helper.make_opsetid("", opset)]
    if apart:
        found = native.infer_node_outputs(node, protos, data, imports[0], ir_version)
    else:
        found = onnx.shape_inference.infer_node_outputs(
            schema, node, protos, data, opset_imports=imports, ir_version=ir_version
        )
    stated = all(proto.tensor_type.HasField("shape") for proto in found.values())
    if not (found and stated) and is_function(schema):
        found = _types_by_function(node, protos, opset, ir_version)
    if node.op_type == "GatherND" and not stated and _picks_one(*(types[n] for n in node.input)):
        found = {name: write_type(TensorType(read_type(found[name]).dtype, ())) for name in found}
    attributes = {item.name: item for item in node.attribute}
    results = [read_type(found[name]) if name in found else UNKNOWN for name in node.output]
    if node.op_type in _POOLS and "ceil_mode" in attributes and attributes["ceil_mode"].i:
        results = [
            _that_begin_inside(attributes, types[node.input[0]], result) for result in results
        ]
    return tuple(results)


def _picks_one(data: TensorType, indices: TensorType) -> bool:
    """Whether a GatherND gives one element, whose shape ONNX leaves unsaid."""
    return data.shape is not None and indices.shape == (len(data.shape),)


def _that_begin_inside(
    given: Mapping[str, onnx.AttributeProto], image: TensorType, pooled: TensorType
) -> TensorType:
    """Without the windows of a pool with ``ceil_mode`` that would begin behind the image: ONNX
    Runtime leaves them out, and ONNX's inference (1.23) counts them in some opsets."""
    if image.shape is None or pooled.shape is None:
        return pooled
    auto = given["auto_pad"].s if "auto_pad" in given else b"NOTSET"
    rank = len(image.shape) - 2
    steps = given["strides"].ints if "strides" in given else [1] * rank
    pads = given["pads"].ints if "pads" in given and auto == b"NOTSET" else [0] * rank
    shape = list(pooled.shape)
    for axis, (size, step, before) in enumerate(zip(image.shape[2:], steps, pads, strict=False), 2):
        count = shape[axis]
        if isinstance(size, int) and isinstance(count, int):
            shape[axis] = min(count, -(-(size + before) // step))
    return replace(pooled, shape=tuple(shape))


def is_function(schema: Any) -> bool:
    """Whether ONNX defines an operator by others (onnx's type stub lacks these two)."""
    return bool(schema.has_function or schema.has_context_dependent_function)


def _types_by_function(
    node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], opset: int, ir_version: int
) -> dict[str, onnx.TypeProto]:
    """Shape inference of a model of one node, which looks into function bodies."""
    inputs = [onnx.ValueInfoProto(name=name, type=proto) for name, proto in types.items()]
    graph = helper.make_graph([node], "node", inputs, [])
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version
    )
    stated = native.infer_shapes(model).graph.value_info
    return {value.name: value.type for value in stated}
