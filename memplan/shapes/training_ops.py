"""Types of tensors that ONNX shape inference does not know: gradients and ORT-training operators.

shape(X_grad) = shape(X); an operator named ``*Grad`` returns gradients of its inputs. The naming
and the operators are those of ONNX Runtime's gradient builder (``orttraining/core/graph``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import onnx

from memplan.proto.nodes import operator_key
from memplan.shapes.tensor_type import UNKNOWN, TensorType, Types

_GRAD_NAME = re.compile(r"^(?P<base>.+?)[._]grad(_[0-9]+)?$")
_REDUCTIONS = frozenset({":ReduceSum", "com.microsoft:ReduceSumTraining"})
_BOUNDARIES = frozenset({"InPlaceAccumulator", "InPlaceAccumulatorV2", "YieldOp"})
_INT64 = onnx.TensorProto.INT64


def training_type(node: onnx.NodeProto, index: int, types: Types) -> TensorType | None:
    """What the rules here can tell of an output."""
    return _by_operator(node, index, types) or _by_name(node.output[index], types)


def is_foreign_training_graph(graph: onnx.GraphProto) -> bool:
    """Whether a graph has gradients or accumulators of onnxruntime-training, which no stock runtime
    loads."""
    return any(
        operator_key(node) in _LIKE_INPUT or node.op_type in _BOUNDARIES for node in graph.node
    )


def bound_of_sum(node: onnx.NodeProto, types: Types) -> TensorType | None:
    """Where axes are known only at run time, a sum is at most as large as what is reduced."""
    is_sum = operator_key(node) in _REDUCTIONS and len(node.input) > 0
    return types.get(node.input[0]) if is_sum else None


def differentiated(name: str) -> str | None:
    """The tensor that ``name`` says to be the gradient of, or a part of it; None if it does not."""
    match = _GRAD_NAME.match(name)
    return match.group("base") if match else None


def _by_name(name: str, types: Types) -> TensorType | None:
    base = differentiated(name)
    return types.get(base) if base is not None else None


def _by_operator(node: onnx.NodeProto, index: int, types: Types) -> TensorType | None:
    key = operator_key(node)
    special = _SPECIAL.get(key)
    if special is not None:
        return special(node, index, types)
    rule = _LIKE_INPUT.get(key)
    if rule is None or index >= len(rule) or rule[index] >= len(node.input):
        return None
    return types.get(node.input[rule[index]])


def _shape(node: onnx.NodeProto, slot: int, types: Types) -> tuple[int, ...] | None:
    return types.get(node.input[slot], UNKNOWN).sizes if slot < len(node.input) else None


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((item.i for item in node.attribute if item.name == name), default)


def _copy(node: onnx.NodeProto, index: int, types: Types) -> TensorType | None:
    """A copy between device and host is like what it copies."""
    return types.get(node.input[0]) if index == 0 else None


def _layer_norm(node: onnx.NodeProto, index: int, types: Types) -> TensorType | None:
    """Mean and inverse deviation: the normalized axes become 1."""
    source = types.get(node.input[0])
    if source is None or source.shape is None or index == 0:
        return source
    axis = _attribute(node, "axis", -1) % max(len(source.shape), 1)
    kept = tuple(1 if k >= axis else dim for k, dim in enumerate(source.shape))
    return TensorType(onnx.TensorProto.FLOAT, kept)


def _fused_matmul(node: onnx.NodeProto, index: int, types: Types) -> TensorType | None:
    """Batch dimensions broadcast, last two by transA and transB."""
    first, second = _shape(node, 0, types), _shape(node, 1, types)
    if first is None or second is None or min(len(first), len(second)) < 2:
        return None
    rows = first[-1] if _attribute(node, "transA", 0) else first[-2]
    columns = second[-2] if _attribute(node, "transB", 0) else second[-1]
    batch_first, batch_second = first[:-2], second[:-2]
    batch = batch_first if math.prod(batch_first) >= math.prod(batch_second) else batch_second
    return TensorType(types[node.input[0]].dtype, (*batch, rows, columns))


def _concat_training(node: onnx.NodeProto, index: int, types: Types) -> TensorType | None:
    """Second output: the length of every input."""
    return TensorType(_INT64, (len(node.input),)) if index == 1 else None


def _broadcast_axes(node: onnx.NodeProto, index: int, types: Types) -> TensorType | None:
    """Axes to reduce: at most as many as the longer of the two shapes has entries."""
    lengths = [shape[0] for k in (0, 1) if (shape := _shape(node, k, types))]
    return TensorType(_INT64, (max(lengths),)) if lengths else None


def _shape_of(node: onnx.NodeProto, index: int, types: Types) -> TensorType | None:
    """``Shape``: one entry per dimension."""
    shape = _shape(node, 0, types)
    return None if shape is None else TensorType(_INT64, (len(shape),))


_SPECIAL: dict[str, Callable[[onnx.NodeProto, int, Types], TensorType | None]] = {
    **dict.fromkeys((":MemcpyToHost", ":MemcpyFromHost"), _copy),
    ":LayerNormalization": _layer_norm,
    "com.microsoft:FusedMatMul": _fused_matmul,
    "com.microsoft:ConcatTraining": _concat_training,
    "com.microsoft:BroadcastGradientArgs": _broadcast_axes,
    ":Shape": _shape_of,
}
# Output k has the type and shape of input rule[k] (onnxruntime
# orttraining/core/graph/training_op_defs.cc).
_LIKE_INPUT: dict[str, Sequence[int]] = {
    "com.microsoft:ReluGrad": (0,),
    "com.microsoft:SigmoidGrad": (0,),
    "com.microsoft:TanhGrad": (0,),
    "com.microsoft:GeluGrad": (0,),
    "com.microsoft:FastGeluGrad": (0,),
    "com.microsoft:QuickGeluGrad": (0,),
    "com.microsoft:BiasGeluGrad_dX": (0,),
    "com.microsoft:BiasFastGeluGrad_dX": (0,),
    "com.microsoft:SoftmaxGrad": (0,),
    "com.microsoft:SoftmaxGrad_13": (0,),
    "com.microsoft:LogSoftmaxGrad": (0,),
    "com.microsoft:LogSoftmaxGrad_13": (0,),
    "com.microsoft:DropoutGrad": (0,),
    "com.microsoft:ConvGrad": (1, 2),
    "com.microsoft:LayerNormalizationGrad": (1, 2, 2),
    "com.microsoft:BatchNormalizationGrad": (1, 2, 2),
    "com.microsoft:SoftmaxCrossEntropyLossGrad": (1,),
    "com.microsoft:SoftmaxCrossEntropyLossInternalGrad": (1,),
}
