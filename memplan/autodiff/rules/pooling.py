"""Pools over windows, and over everything."""

from __future__ import annotations

import math

import numpy as np
import onnx

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradients, gradient
from memplan.autodiff.emit.value import Array, Value
from memplan.autodiff.rules.scattering import add_along
from memplan.autodiff.rules.windows import SAME, Windows, spread, windows_of
from memplan.errors import ModelError
from memplan.shapes.tensor_type import NARROW_FLOATS

_INT32 = onnx.TensorProto.INT32
_INT32_LIMIT = 2**31


def _windows(ctx: Context) -> Windows:
    """The windows of a pool.

    Raises:
        ModelError: it is dilated, and ``auto_pad`` says how it is padded: ONNX Runtime (1.31.1)
            pads as if it were not.
    """
    kernel = ctx.attribute("kernel_shape", list[int]())
    dilations = ctx.attribute("dilations", list[int]()) or [1] * len(kernel)
    dilated = any(d > 1 and k > 1 for d, k in zip(dilations, kernel, strict=True))
    if dilated and ctx.attribute("auto_pad", "NOTSET") in SAME:
        raise ModelError(
            f"the gradient of {ctx.node.op_type} '{ctx.node.name}' needs pads instead of auto_pad, "
            "as it is dilated",
            "ONNX Runtime and ONNX differ in what it pads; write the padding that is meant as the "
            "attribute pads",
        )
    return windows_of(ctx, kernel, ctx.tensors[0].shape[2:], ctx.y.shape[2:])


def _sizes(ctx: Context, value: Value) -> tuple[int, ...]:
    """Spatial sizes, where the rule cannot do without."""
    sizes = tuple(dim for dim in value.shape[2:] if isinstance(dim, int))
    if len(sizes) == value.rank - 2:
        return sizes
    raise ctx.needs("static shapes")


# -- the largest -------------------------------------------------------------------------------


@gradient("MaxPool", inputs=(0,), outputs=(0,))
def max_pool(ctx: Context) -> Gradients:
    """To the elements that won, by their indices. Those are kept as int32 where they fit."""
    x, indices, windows = ctx.tensors[0], ctx.output(1), _windows(ctx)
    columns = ctx.attribute("storage_order", 0) == 1 and windows.rank > 1
    count = x.type.elements
    if count is not None and count < _INT32_LIMIT:
        with ctx.in_forward():
            indices = ctx.cast(indices, _INT32)
    apart = all(windows.strides[k] >= windows.span(k) for k in range(windows.rank))
    places, numbers = (ctx.reshape(v, (v.type.elements or "",)) for v in (indices, ctx.dy))
    # Narrow types are added in float32; where windows lie apart, nothing needs to be added.
    adding = not (apart and x.dtype in NARROW_FLOATS)
    flat = ctx.reshape(ctx.full_like(x) if columns or not adding else ctx.base(0), (count or "",))
    if adding:
        total = add_along(ctx, flat, places, numbers, 0)
    else:
        total = ctx.op("ScatterElements", flat, places, numbers, axis=0)
    if not columns:
        return (ctx.reshape_like(total, x),)
    turned = ctx.reshape(total, (*x.shape[:2], *reversed(_sizes(ctx, x))))
    return (ctx.transpose(turned, [0, 1, *range(x.rank - 1, 1, -1)]),)


@gradient("GlobalMaxPool", broadcast=True)
def global_max_pool(ctx: Context) -> Gradients:
    """To the elements that have the largest value, evenly."""
    x = ctx.tensors[0]
    hits = ctx.cast(ctx.op("Equal", x, ctx.y), x.dtype)
    return (hits * (ctx.dy / ctx.sum(hits, range(2, x.rank))),)


# -- sums --------------------------------------------------------------------------------------


@gradient("AveragePool")
def average_pool(ctx: Context) -> Gradients:
    """Shares of the gradient, added over the windows that an element is in."""
    x, windows = ctx.tensors[0], _windows(ctx)
    counts = _counts(ctx, windows)
    if counts.size == 1:
        return (_added(ctx, ctx.dy, windows, 1 / float(counts.item())),)
    return (_added(ctx, ctx.dy * ctx.const(1 / counts, x.dtype), windows, 1.0),)


def _counts(ctx: Context, windows: Windows) -> Array:
    """How many elements each window has: one number, or one per window."""
    padded = ctx.attribute("count_include_pad", 0) == 1
    beyond = any(windows.before + windows.behind)
    if (padded or not beyond) and not ctx.attribute("ceil_mode", 0):
        return np.asarray(math.prod(windows.kernel))
    ctx.require_room(*_sizes(ctx, ctx.y))
    result = np.ones((1, 1))
    pairs = zip(_sizes(ctx, ctx.tensors[0]), _sizes(ctx, ctx.y), strict=True)
    for axis, (size, count) in enumerate(pairs):
        low = -windows.before[axis] if padded else 0
        high = size + windows.behind[axis] if padded else size
        steps = np.arange(count) * windows.strides[axis] - windows.before[axis]
        ctx.require_room(count, windows.kernel[axis])
        inner = np.arange(windows.kernel[axis]) * windows.dilations[axis]
        places = steps[:, None] + inner
        result = result[..., None] * ((places >= low) & (places < high)).sum(1)
    return result if result.min() < result.max() else result.reshape(-1)[0]


def _added(ctx: Context, grad: Value, windows: Windows, share: float) -> Value:
    """``share`` of ``grad``, added over the windows: a kernel of equal numbers per channel."""
    x = ctx.tensors[0]
    channels = x.shape[1]
    if not isinstance(channels, int):
        raise ctx.needs("the number of channels")
    ctx.require_room(channels, *windows.kernel)
    weight = ctx.const(np.full((channels, 1, *windows.kernel), share), x.dtype)
    return spread(ctx, grad, weight, windows, x.shape, channels, x)


@gradient("GlobalAveragePool", broadcast=True)
def global_average_pool(ctx: Context) -> Gradients:
    """The same share to every element."""
    x = ctx.tensors[0]
    return (ctx.over_count(ctx.dy, x, range(2, x.rank)),)
