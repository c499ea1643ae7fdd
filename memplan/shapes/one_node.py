"""ONNX shape inference of one operator, remembered: a graph has many nodes of few kinds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from memplan.proto import native
from memplan.proto.nodes import captured_names, domain_of, is_standard
from memplan.proto.opset import schema_of
from memplan.shapes.infer import Array, run_inference
from memplan.shapes.tensor_type import (
    UNKNOWN,
    TensorType,
    parse_type,
    read_type,
    type_bytes,
    write_type,
)

Content = tuple[str, tuple[int, ...], bytes]
"""Element type, shape and content of a small tensor."""
_FEW = 32
# A Constant of a function's own definition (onnx 1.23, MeanVarianceNormalization of opset 9 to 12):
# inference is at fault there, not the model. Constants of models are checked before.
_IN_A_FUNCTION = "(op_type:Constant)"
# Behind an operator whose results inference does not know (onnx 1.23, GroupNormalization).
_UNTYPED = "expected to have type but instead is null"
_SHAPES = "Inference error(s)"
_PLACE = re.compile(r"^(\[ShapeInferenceError\] |Inference error\(s\): |\(op_type:[^)]*\): )+")
_POOLS = frozenset({"MaxPool", "AveragePool", "LpPool"})
_MENDED = frozenset({"GroupNormalization", "GatherND"})


@dataclass(frozen=True, slots=True)
class Inferred:
    """What inference says of a node: serialized types of its outputs by slot, empty where it tells
    nothing; why it refuses the shapes of its inputs, or their element types, if it does."""

    types: tuple[bytes, ...]
    refusal: str = ""
    mistyped: str = ""


def content_of(array: Array) -> Content | None:
    """What inference is given of a small tensor: whole numbers, or few others."""
    whole = array.dtype.kind in "iu"
    if not whole and (array.dtype.kind not in "fb" or array.size > _FEW):
        return None
    return array.dtype.str, array.shape, array.tobytes()


def infer_node(
    node: onnx.NodeProto,
    types: Mapping[str, bytes],
    contents: Mapping[str, Content],
    header: bytes,
) -> Inferred:
    """ONNX shape inference of a node of a main graph, as it would be within the whole.

    Args:
        node: the node, of whatever domain that ONNX knows.
        types: serialized, by the names that the node and its bodies read; empty where unknown.
        contents: of small constants.
        header: a serialized model without a graph: opsets and IR version.

    Raises:
        ModelError: inference ended its process.
    """
    inputs = node.input[:]
    # The names of tensors make no difference, but for those that bodies read.
    captured = captured_names(node)
    if captured:
        shown = {name: name for name in (*inputs, *captured) if name}
    else:
        shown = {name: f"x{k}" for k, name in enumerate(inputs) if name}
    return _infer_node(
        (node.op_type, node.domain),
        tuple([item.SerializeToString() for item in node.attribute]),
        tuple([shown.get(name, "") for name in inputs]),
        tuple([bool(name) for name in node.output]),
        tuple([(short, types.get(name, b"")) for name, short in shown.items()]),
        tuple([(short, contents[name]) for name, short in shown.items() if name in contents]),
        header,
    )


@lru_cache(maxsize=1 << 14)
def _infer_node(
    operator: tuple[str, str],
    attributes: tuple[bytes, ...],
    inputs: tuple[str, ...],
    outputs: tuple[bool, ...],
    types: tuple[tuple[str, bytes], ...],
    contents: tuple[tuple[str, Content], ...],
    header: bytes,
) -> Inferred:
    model = onnx.ModelProto.FromString(header)
    graph = model.graph
    graph.name = "node"
    node = graph.node.add(op_type=operator[0], domain=operator[1], input=inputs)
    node.attribute.extend(map(onnx.AttributeProto.FromString, attributes))
    names = [f"y{k}'" if there else "" for k, there in enumerate(outputs)]
    node.output.extend(names)
    given = {name: onnx.TypeProto.FromString(data) for name, data in types if data}
    graph.input.extend(onnx.ValueInfoProto(name=name, type=found) for name, found in given.items())
    for name, (dtype, shape, data) in contents:
        array = np.frombuffer(data, dtype).reshape(shape)
        graph.initializer.append(numpy_helper.from_array(array, name))
    refusal = mistyped = ""
    try:
        found = native.infer_shapes(model, strict=True)
    except onnx.shape_inference.InferenceError as error:
        first, found = str(error).splitlines()[0], run_inference(model)
        reason = _PLACE.sub("", first)
        if _SHAPES not in first and f"(op_type:{node.op_type})" in first:
            mistyped = reason
        elif _SHAPES in first and _IN_A_FUNCTION not in str(error) and _UNTYPED not in first:
            refusal = reason
    except (ValueError, RuntimeError, MemoryError):
        return Inferred(tuple(b"" for _ in outputs))
    made = {value.name: value.type for value in found.graph.value_info}
    for proto in made.values():
        _drop_new_names(proto, given.values())
    made = dict(_mended(node, given, made))
    results = (made[name].SerializeToString() if name in made else b"" for name in names)
    return Inferred(tuple(results), refusal, mistyped)


def _drop_new_names(proto: onnx.TypeProto, given: Iterable[onnx.TypeProto]) -> None:
    """Take names of dimensions that inference has made up out of a type: those of another node mean
    other sizes."""
    names = {dim.dim_param for known in given for dim in known.tensor_type.shape.dim}
    if proto.HasField("tensor_type"):
        for dim in proto.tensor_type.shape.dim:
            if dim.dim_param and dim.dim_param not in names:
                dim.Clear()


def infer_types(
    node: onnx.NodeProto,
    types: Mapping[str, TensorType],
    constants: Mapping[str, Array],
    opset: int,
    ir_version: int = 10,
) -> tuple[TensorType, ...]:
    """ONNX shape inference of one node of the default domain; unknown where it gives up, and where
    an input is not known.

    Raises:
        onnx.shape_inference.InferenceError: the shapes of its inputs do not fit the operator.
        onnx.checker.ValidationError: their element types do not.
        ModelError: see :func:`infer_node`.
    """
    given = {name: types.get(name, UNKNOWN) for name in node.input if name}
    known = schema_of(domain_of(node), node.op_type, opset) is not None
    if domain_of(node) or not known or any(found.dtype == 0 for found in given.values()):
        return (UNKNOWN,) * len(node.output)
    arrays = ((name, constants[name]) for name in given if name in constants)
    contents = ((name, content_of(array)) for name, array in arrays)
    found = infer_node(
        node,
        {name: type_bytes(kind) for name, kind in given.items()},
        {name: content for name, content in contents if content is not None},
        _header(opset, ir_version),
    )
    if found.refusal:
        raise onnx.shape_inference.InferenceError(found.refusal)
    if found.mistyped:
        raise onnx.checker.ValidationError(found.mistyped)
    return tuple(map(parse_type, found.types))


@cache
def _header(opset: int, ir_version: int) -> bytes:
    imports = [helper.make_opsetid("", opset)]
    return bytes(onnx.ModelProto(ir_version=ir_version, opset_import=imports).SerializeToString())


def _mended(
    node: onnx.NodeProto, given: Mapping[str, onnx.TypeProto], found: Mapping[str, onnx.TypeProto]
) -> Mapping[str, onnx.TypeProto]:
    """What ONNX's inference (1.23) says of a node's outputs, where that is not what ONNX Runtime
    makes."""
    if not is_mended(node):
        return found
    if node.op_type == "GroupNormalization" and node.input and node.input[0] in given:
        # From opset 21 on it has no inference: results are like what is normalized.
        return {node.output[0]: given[node.input[0]]}
    if node.op_type == "GatherND":
        data, indices = (read_type(given.get(name, onnx.TypeProto())) for name in node.input)
        if data.shape is not None and indices.shape == (len(data.shape),):
            # It gives one element, whose shape is left unsaid.
            return {name: write_type(TensorType(data.dtype, ())) for name in found}
    if node.op_type in _POOLS:
        attributes = {item.name: item for item in node.attribute}
        image = read_type(given.get(node.input[0], onnx.TypeProto()))
        return {
            name: write_type(_that_begin_inside(attributes, image, read_type(proto)))
            for name, proto in found.items()
        }
    return found


def is_mended(node: onnx.NodeProto) -> bool:
    """Whether inference may say of a node what ONNX Runtime does not make."""
    rounded = node.op_type in _POOLS and any(a.name == "ceil_mode" and a.i for a in node.attribute)
    return is_standard(node.domain) and (rounded or node.op_type in _MENDED)


def _that_begin_inside(
    given: Mapping[str, onnx.AttributeProto], image: TensorType, pooled: TensorType
) -> TensorType:
    """Without the windows of a pool with ``ceil_mode`` that would begin behind the image: they are
    left out, and inference counts them in some opsets."""
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
