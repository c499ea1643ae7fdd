"""Adding at indices.

float16 and bfloat16 are added in float32. ONNX Runtime's CPU kernels refuse float16 when they run
(1.31.1), and a long sum in so few bits stands still: 1 + ... + 1 ends at 256 in bfloat16.
"""

from __future__ import annotations

import math

import onnx

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.operations import INT64
from memplan.autodiff.emit.value import Value
from memplan.shapes.tensor_type import NARROW_FLOATS, Shape, TensorType

_FLOAT, INT32 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT32
_MOST_IN_32_BITS = 2**31


def add_at(ctx: Context, base: Value, indices: Value, updates: Value) -> Value:
    """``base`` with ``updates`` added at ``indices``, as ScatterND understands them.

    By ScatterND itself only where the sizes that number the rows are unknown: on the CPU, ONNX
    Runtime's kernel runs several threads that lose updates where an index occurs twice (1.31.1).
    """
    if base.dtype in NARROW_FLOATS:
        whole = add_at(ctx, widened(ctx, base), indices, widened(ctx, updates))
        return ctx.cast(whole, base.dtype)
    depth = indices.shape[-1]
    if depth == 1:
        return add_slices(ctx, base, ctx.squeeze(indices, [indices.rank - 1]), updates, 0)
    lead = base.shape[:depth] if isinstance(depth, int) else ()
    sizes = [dim for dim in lead if isinstance(dim, int)]
    if not sizes or len(sizes) < len(lead):
        places = ctx.cast(indices, INT64)
        return ctx.op("ScatterND", base, places, updates, reduction="add")
    places = _rows(ctx, indices, sizes)
    count = math.prod(sizes)
    rest = [ctx.dims(base, [k]) for k in range(len(lead), base.rank)]
    flat = TensorType(base.dtype, (count, *base.shape[len(lead) :]))
    rows = ctx.op("Reshape", base, ctx.vector([ctx.const([count]), *rest]), result=flat)
    return ctx.reshape_like(add_slices(ctx, rows, places, updates, 0), base)


def _rows(ctx: Context, indices: Value, sizes: list[int]) -> Value:
    """The numbers of the elements, or slices, at ``indices`` of a tensor that begins so."""
    strides = [math.prod(sizes[k + 1 :]) for k in range(len(sizes))]
    whole = ctx.const(sizes, indices.dtype)
    positive = ctx.op("Where", ctx.op("Less", indices, 0), indices + whole, indices)
    return ctx.sum(positive * ctx.const(strides, indices.dtype), [indices.rank - 1])


def add_slices(ctx: Context, base: Value, indices: Value, updates: Value, axis: int) -> Value:
    """``base`` with ``updates`` added where Gather along ``axis`` reads them."""
    flat = ctx.op("Reshape", indices, ctx.const([-1]))
    width = TensorType(base.dtype, base.shape[1:]).elements
    if axis == 0 and width and base.rank > 1:
        return _add_rows(ctx, base, flat, updates, width)
    # One dimension of indices, repeated along the others.
    shape: Shape = (*base.shape[:axis], flat.shape[0], *base.shape[axis + 1 :])
    sizes = [ctx.dims(base, [k]) for k in range(base.rank)]
    sizes[axis] = ctx.dims(flat, [0])
    target = ctx.vector(sizes)
    # Where there may be no index, a 0 is a size of its own, not that of another dimension.
    empty = indices.rank > 1 and not (isinstance(flat.shape[0], int) and flat.shape[0] > 0)
    zero = {"allowzero": 1} if empty else {}
    result = TensorType(base.dtype, shape)
    numbers = ctx.op("Reshape", updates, target, result=result, **zero)
    column = ctx.unsqueeze(flat, list(range(1, base.rank - axis)))
    places = ctx.op("Expand", column, target, result=TensorType(indices.dtype, shape))
    return add_along(ctx, base, places, numbers, axis)


def _add_rows(ctx: Context, base: Value, indices: Value, updates: Value, width: int) -> Value:
    """``base`` with rows of ``width`` elements added at ``indices``, element by element.

    ONNX Runtime's kernel takes less than half the time for one dimension as for two (1.31.1:
    5.0 instead of 12.1 ms for 2,048 rows of 384, 77 instead of 173 for 8,192 of 768), and the
    places take half the bytes where 32 bits number all elements.
    """
    if base.dtype in NARROW_FLOATS:
        wide = _add_rows(ctx, widened(ctx, base), indices, widened(ctx, updates), width)
        return ctx.cast(wide, base.dtype)
    elements = base.type.elements
    kind = INT32 if elements is not None and elements < _MOST_IN_32_BITS else INT64
    first = ctx.unsqueeze(ctx.cast(indices, kind) * width, [1])
    count = indices.shape[0]
    total = count * width if isinstance(count, int) else ""
    line = ctx.const([-1])
    places = first + ctx.op("Range", *(ctx.const(n, kind) for n in (0, width, 1)))
    places = ctx.op("Reshape", places, line, result=TensorType(kind, (total,)))
    numbers = ctx.op("Reshape", updates, line, result=TensorType(base.dtype, (total,)))
    flat = TensorType(base.dtype, (elements if elements is not None else "",))
    into = ctx.op("Reshape", base, line, result=flat)
    added = ctx.op("ScatterElements", into, places, numbers, axis=0, reduction="add")
    return ctx.reshape_like(added, base)


def add_along(ctx: Context, base: Value, indices: Value, updates: Value, axis: int) -> Value:
    """``base`` with ``updates`` added at ``indices``, as ScatterElements understands them."""
    if base.dtype in NARROW_FLOATS:
        whole = add_along(ctx, widened(ctx, base), indices, widened(ctx, updates), axis)
        return ctx.cast(whole, base.dtype)
    return ctx.op("ScatterElements", base, indices, updates, axis=axis, reduction="add")


def widened(ctx: Context, value: Value) -> Value:
    """A narrow tensor in float32. One that holds a constant everywhere is never made narrow."""
    made = ctx.maker(value)
    if made is not None and made.op_type in ("Expand", "Reshape"):
        source = ctx.tensor(made.input[0])
        number = ctx.constant(source)
        wide = widened(ctx, source) if number is None else ctx.const(number, _FLOAT)
        if number is not None or _is_cast_free(ctx, wide):
            result = TensorType(_FLOAT, value.type.shape)
            return ctx.op(made.op_type, wide, ctx.tensor(made.input[1]), result=result)
    return ctx.cast(value, _FLOAT)


def _is_cast_free(ctx: Context, value: Value) -> bool:
    made = ctx.maker(value)
    return made is not None and made.op_type != "Cast"


def source_of(ctx: Context, value: Value) -> Value:
    """What a Cast between a narrow type and float32 was made from; else the tensor itself."""
    made = ctx.maker(value)
    if made is None or made.op_type != "Cast" or value.dtype not in (_FLOAT, *NARROW_FLOATS):
        return value
    source = ctx.tensor(made.input[0])
    return source if source.dtype in (_FLOAT, *NARROW_FLOATS) else value
