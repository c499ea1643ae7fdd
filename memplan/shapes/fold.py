"""Fold small integer computations on shapes, where ONNX's data propagation gives up.

Exporters compute shapes in the graph (``Shape → Gather → Concat → Expand``, ``Range`` over a
constant). Values of small tensors are evaluated with ONNX's own reference implementation.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from memplan.proto.bare import has_small_content, is_small
from memplan.proto.limits import MOST_FOLDED
from memplan.proto.nodes import is_constant, is_standard
from memplan.shapes.infer import Array
from memplan.shapes.tensor_type import UNKNOWN, TensorType, Types

_TOO_MANY = 2**63
# Operators that exporters use to compute shapes. Others would be run for nothing, or draw numbers.
_FOLDED = frozenset(
    {"Shape", "Size", "Identity", "Cast", "ConstantOfShape", "Range", "Expand", "Tile"}
    | {"Add", "Sub", "Mul", "Div", "Mod", "Pow", "Neg", "Abs", "Sign", "Min", "Max", "Clip", "Sum"}
    | {"Sqrt", "Floor", "Ceil", "Round", "Where", "Equal", "Less", "LessOrEqual", "Greater"}
    | {"GreaterOrEqual", "And", "Or", "Not", "Xor", "IsNaN", "IsInf", "BitShift", "CumSum"}
    | {"Concat", "Split", "Slice", "Gather", "GatherElements", "GatherND", "ScatterElements"}
    | {"ScatterND", "Compress", "NonZero", "Unique", "TopK", "ArgMax", "ArgMin", "Trilu"}
    | {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "ReduceSum", "ReduceProd"}
    | {"ReduceMax", "ReduceMin", "ReduceMean"}
)


def small_constants(
    graph: onnx.GraphProto, *, defaults: bool = False, of: Container[str] | None = None
) -> dict[str, Array]:
    """Contents of small initializers and ``Constant`` nodes by tensor name.

    ``defaults``: also of initializers that are graph inputs, which a run may replace. ``of``: only
    of these tensors.
    """
    found: dict[str, Array] = {}
    replaceable = set() if defaults else {value.name for value in graph.input}
    for tensor in graph.initializer:
        wanted = tensor.name not in replaceable and (of is None or tensor.name in of)
        if wanted and has_small_content(tensor):
            found[tensor.name] = numpy_helper.to_array(tensor)
    for node in graph.node:
        if is_constant(node) and (of is None or node.output[0] in of):
            value = constant_value(node.attribute[0])
            if value is not None:
                found[node.output[0]] = value
    return found


def small_constant(graph: onnx.GraphProto, name: str) -> Array | None:
    """The content of one of :func:`small_constants`, defaults of graph inputs among them."""
    for tensor in graph.initializer:
        if tensor.name == name:
            return numpy_helper.to_array(tensor) if has_small_content(tensor) else None
    for node in graph.node:
        if is_constant(node) and node.output[0] == name:
            return constant_value(node.attribute[0])
    return None


def whole_numbers(value: Array | None) -> list[int] | None:
    """The elements of a constant that is read as sizes, axes or indices; None where it is not known
    or holds other than integers or flags, which nothing but a run refuses."""
    if value is None or value.dtype.kind not in "iub":
        return None
    return [int(n) for n in value.reshape(-1)]


def constant_value(attribute: onnx.AttributeProto) -> Array | None:
    """What a ``Constant`` holds; None if it is large, elsewhere, sparse or text."""
    if attribute.name == "value":
        return numpy_helper.to_array(attribute.t) if has_small_content(attribute.t) else None
    if attribute.name in ("value_int", "value_ints"):
        whole = attribute.i if attribute.name == "value_int" else list(attribute.ints)
        return np.asarray(whole, dtype=np.int64)
    if attribute.name in ("value_float", "value_floats"):
        real = attribute.f if attribute.name == "value_float" else list(attribute.floats)
        return np.asarray(real, dtype=np.float32)
    return None


def folded_constants(bound: onnx.ModelProto, types: Types) -> dict[str, Array]:
    """Contents of small constants, and of what is computed from them and from shapes."""
    values, known = small_constants(bound.graph), dict(types)
    left = MOST_FOLDED
    for node in bound.graph.node:
        if left < 0:
            break
        for name, array in evaluate(bound, node, values, known).items():
            values[name] = array
            left -= array.size
            dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            known[name] = TensorType(int(dtype), array.shape)
    return values


def evaluate(
    model: onnx.ModelProto,
    node: onnx.NodeProto,
    values: Mapping[str, Array],
    types: Types,
) -> dict[str, Array]:
    """What a node of the main graph gives, if that is small and follows from ``values`` and from
    shapes; else nothing."""
    if not is_standard(node.domain) or node.op_type not in _FOLDED:
        return {}
    if node.output[0] in values:
        return {}
    if node.op_type in ("Shape", "Size"):
        shape = types.get(node.input[0], UNKNOWN).sizes
        if shape is None:
            return {}
        if node.op_type == "Size":
            size = math.prod(shape)
            return {node.output[0]: np.asarray(size, dtype=np.int64)} if size < _TOO_MANY else {}
        bounds = {item.name: item.i for item in node.attribute}
        part = shape[bounds.get("start", 0) : bounds.get("end", len(shape))]
        return {node.output[0]: np.asarray(part, dtype=np.int64)}
    if any(name and name not in values for name in node.input):
        return {}
    return _run_reference(model, node, values) if is_small(_grown(node, values)) else {}


_SHAPED = {"ConstantOfShape": 0, "Expand": 1, "Tile": 1}
"""Operators whose output has the sizes, or times the sizes, that an input holds."""


def _grown(node: onnx.NodeProto, values: Mapping[str, Array]) -> float:
    """At least the elements of the output, and of what is computed on the way; inf if it cannot be
    told. Inputs broadcast, unless the operator says otherwise."""
    arrays = [values[name] for name in node.input if name]
    if any(array.dtype.kind not in "biuf" for array in arrays):
        return math.inf
    if node.op_type in _SHAPED and len(arrays) > _SHAPED[node.op_type]:
        sizes = arrays[_SHAPED[node.op_type]].reshape(-1)
        made = math.prod(abs(float(size)) for size in sizes)
        return made * max(arrays[0].size if node.op_type != "ConstantOfShape" else 1, 1)
    if node.op_type == "Range" and all(array.size for array in arrays):
        start, limit, step = (float(array.reshape(-1)[0]) for array in arrays)
        return (limit - start) / step if step else math.inf
    if node.op_type == "Concat":
        return float(sum(array.size for array in arrays))
    if node.op_type in ("Gather", "GatherND") and len(arrays) > 1:
        return float(arrays[0].size) * max(arrays[1].size, 1)
    if node.op_type in _BROADCAST and arrays:
        return _broadcast_elements([array.shape for array in arrays])
    ranks = arrays[0].ndim if node.op_type == "NonZero" and arrays else 1
    return float(max((array.size for array in arrays), default=0) * ranks)


_BROADCAST = frozenset(
    {"Add", "Sub", "Mul", "Div", "Mod", "Pow", "Min", "Max", "Clip", "Sum", "Where", "Equal"}
    | {"Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor", "BitShift"}
)


def _broadcast_elements(shapes: list[tuple[int, ...]]) -> float:
    """Elements of the common shape: no axis is longer there than in the longest of ``shapes``."""
    rank = max(map(len, shapes))
    padded = [(*(1,) * (rank - len(shape)), *shape) for shape in shapes]
    return math.prod(float(max(sizes)) for sizes in zip(*padded, strict=True))


def _run_reference(
    model: onnx.ModelProto, node: onnx.NodeProto, values: Mapping[str, Array]
) -> dict[str, Array]:
    from onnx.reference import ReferenceEvaluator

    opsets = {item.domain: item.version for item in model.opset_import}
    feeds = {name: values[name] for name in node.input if name}
    try:
        evaluator = ReferenceEvaluator(node, opsets=opsets)
        with np.errstate(all="ignore"):  # infinities are what the graph says
            outputs = evaluator.run(None, feeds)
    except Exception:  # anything that the reference cannot evaluate simply stays unknown
        return {}
    result = {}
    for name, value in zip(node.output, outputs, strict=False):
        if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in "biuf":
            return {}
        if not is_small(value.size):
            return {}
        result[name] = np.asarray(value)
    return result
