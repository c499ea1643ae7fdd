"""Adding at indices, with and without the operators that opset 16 brought.

ONNX Runtime's CPU kernels refuse to add float16 when they run (1.31.1), so sums are of float32
there, which loses nothing.
"""

from __future__ import annotations

import math

import numpy as np
import onnx

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.operations import INT64
from memplan.autodiff.emit.value import Value
from memplan.errors import ModelError

ADDING = 16
"""The first opset in which ScatterElements and ScatterND can add."""
_HALF, _FLOAT = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT


def add_at(ctx: Context, base: Value, indices: Value, updates: Value) -> Value:
    """``base`` with ``updates`` added at ``indices``, as ScatterND understands them."""
    if base.dtype == _HALF and ctx.opset >= ADDING:
        wide = [ctx.cast(value, _FLOAT) for value in (base, updates)]
        return ctx.cast(add_at(ctx, wide[0], indices, wide[1]), _HALF)
    if ctx.opset >= ADDING:
        places = ctx.cast(indices, INT64)
        return ctx.op("ScatterND", base, places, updates, reduction="add")
    depth = _size(ctx, indices.shape[-1])
    sizes = [_size(ctx, dim) for dim in base.shape[:depth]]
    strides = [math.prod(sizes[k + 1 :]) for k in range(depth)]
    whole = ctx.const(sizes, indices.dtype)
    positive = ctx.op("Where", ctx.op("Less", indices, 0), indices + whole, indices)
    places = ctx.sum(positive * ctx.const(strides, indices.dtype), [indices.rank - 1])
    width = math.prod(_size(ctx, dim) for dim in base.shape[depth:])
    rows = ctx.op("Reshape", updates, ctx.const([-1, width]))
    hits = _hits(ctx, ctx.op("Reshape", places, ctx.const([-1, 1])), math.prod(sizes), base.dtype)
    return base + ctx.reshape_like(ctx.op("Gemm", hits, rows, transA=1), base)


def add_along(ctx: Context, base: Value, indices: Value, updates: Value, axis: int) -> Value:
    """``base`` with ``updates`` added at ``indices``, as ScatterElements understands them."""
    if base.dtype == _HALF and ctx.opset >= ADDING:
        wide = [ctx.cast(value, _FLOAT) for value in (base, updates)]
        return ctx.cast(add_along(ctx, wide[0], indices, wide[1], axis), _HALF)
    if ctx.opset >= ADDING:
        return ctx.op("ScatterElements", base, indices, updates, axis=axis, reduction="add")
    size = _size(ctx, base.shape[axis])
    order = [k for k in range(base.rank) if k != axis] + [axis]
    positive = ctx.op("Where", ctx.op("Less", indices, 0), indices + size, indices)
    places, numbers = (ctx.transpose(value, order) for value in (positive, updates))
    hits = _hits(ctx, ctx.unsqueeze(places, [base.rank]), size, base.dtype)
    rows = ctx.unsqueeze(numbers, [base.rank - 1])
    total = ctx.squeeze(ctx.op("MatMul", rows, hits), [base.rank - 1])
    total = ctx.transpose(total, sorted(range(base.rank), key=lambda k: order[k]))
    missing = [
        0 if k == axis else _size(ctx, base.shape[k]) - _size(ctx, indices.shape[k])
        for k in range(base.rank)
    ]
    if any(missing):
        total = ctx.op("Pad", total, ctx.const([0] * base.rank + missing))
    return base + total


def _hits(ctx: Context, places: Value, size: int, dtype: int) -> Value:
    """1 where a place has a number, along a new last dimension (``places`` has it with size 1)."""
    ctx.require_room(size)
    numbers = ctx.const(np.arange(size), places.dtype)
    return ctx.cast(ctx.op("Equal", places, numbers), dtype)


def _size(ctx: Context, dim: int | str) -> int:
    if isinstance(dim, str):
        raise ModelError(
            f"the gradient of {ctx.node.op_type} '{ctx.node.name}' needs static shapes before "
            f"opset {ADDING}",
            "convert the model with onnx.version_converter",
        )
    return dim
