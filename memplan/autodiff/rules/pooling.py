"""Pools over windows, and over everything."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import onnx

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradients, gradient
from memplan.autodiff.emit.value import Array, Value
from memplan.autodiff.rules.scattering import add_along
from memplan.autodiff.rules.windows import SAME, Windows, spread, windows_of
from memplan.errors import ModelError
from memplan.shapes.tensor_type import NARROW_FLOATS

_INT32, _FLOAT = onnx.TensorProto.INT32, onnx.TensorProto.FLOAT
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
    windows = _windows(ctx)
    if ctx.emitter.portable:
        return (_by_comparison(ctx, windows),)
    x, indices = ctx.tensors[0], ctx.output(1)
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


def _by_comparison(ctx: Context, windows: Windows) -> Value:
    """The same without indices, which WebGPU's pool has not, and without a scatter, which adds in
    any order there.

    The winner of a window is the first of its offsets whose element equals the largest; the last
    offset needs no comparison. What its windows bring an element is added in the order of the
    windows, so the bits are those of the scatter, unless that adds to a sum that was there before
    it. Elements of the grid are made one remainder of the strides after the other.
    """
    x, rank = ctx.tensors[0], windows.rank
    sizes, counts, steps = _sizes(ctx, x), _sizes(ctx, ctx.y), windows.strides
    axes = range(rank)
    offsets = [
        [place * windows.dilations[axis] for axis, place in enumerate(each)]
        for each in itertools.product(*map(range, windows.kernel))
    ]
    winner = _winners(ctx, windows, offsets)
    dy = ctx.cast(ctx.dy, _FLOAT) if x.dtype in NARROW_FLOATS else ctx.dy
    # How often each stride fits the windows, and the image.
    grid = [
        max(
            counts[axis] + (windows.span(axis) - 1) // steps[axis],
            -(-(windows.before[axis] + sizes[axis]) // steps[axis]),
        )
        for axis in axes
    ]
    sums: dict[tuple[int, ...], Value] = {}
    for number, offset in reversed(list(enumerate(offsets))):
        part = dy
        if winner is not None:
            won = ctx.op("Equal", winner, ctx.const(number, _INT32))
            part = ctx.op("Where", won, dy, ctx.const(0, dy.dtype))
        moved = [offset[axis] // steps[axis] for axis in axes]
        rest = [grid[axis] - counts[axis] - moved[axis] for axis in axes]
        part = _padded(ctx, part, moved, rest, 0)
        key = tuple(offset[axis] % steps[axis] for axis in axes)
        sums[key] = sums[key] + part if key in sums else part
    whole = _interleaved(ctx, sums, grid, steps)
    ends = [windows.before[axis] + sizes[axis] for axis in axes]
    if tuple(whole.shape[2:]) != sizes:
        whole = ctx.slice(whole, list(windows.before), ends, [2 + axis for axis in axes])
    return ctx.cast(whole, x.dtype)


def _winners(ctx: Context, windows: Windows, offsets: list[list[int]]) -> Value | None:
    """For every window, the number of the offset that won, as int32; None where there is one."""
    if len(offsets) == 1:
        return None
    x, axes = ctx.tensors[0], [2 + axis for axis in range(windows.rank)]
    sizes, counts = _sizes(ctx, x), _sizes(ctx, ctx.y)
    reach = [windows.reach(axis, count) for axis, count in enumerate(counts)]
    behind = [max(r - b - n, 0) for r, b, n in zip(reach, windows.before, sizes, strict=True)]
    strides = list(windows.strides)
    last = [(count - 1) * step + 1 for count, step in zip(counts, strides, strict=True)]
    with ctx.in_forward():
        around = _padded(ctx, x, windows.before, behind, -math.inf)
        winner = ctx.const(len(offsets) - 1, _INT32)
        for number, offset in reversed(list(enumerate(offsets[:-1]))):
            ends = [place + end for place, end in zip(offset, last, strict=True)]
            each = ctx.slice(around, offset, ends, axes, strides)
            hit = ctx.op("Equal", each, ctx.y)
            winner = ctx.op("Where", hit, ctx.const(number, _INT32), winner)
    return winner


def _padded(
    ctx: Context, value: Value, before: Sequence[int], behind: Sequence[int], content: float
) -> Value:
    """``value`` with elements in front of and behind its spatial axes."""
    if not any((*before, *behind)):
        return value
    pads = [0, 0, *before, 0, 0, *behind]
    return ctx.op("Pad", value, ctx.const(pads), ctx.const(content, value.dtype))


def _interleaved(
    ctx: Context, sums: dict[tuple[int, ...], Value], grid: list[int], steps: Sequence[int]
) -> Value:
    """The grid, of a tensor for each remainder of the strides; 0 where there is none."""
    remainders = list(itertools.product(*map(range, steps)))
    if len(remainders) == 1:
        return sums[remainders[0]]
    zeros = ctx.full_like(next(iter(sums.values()))) if len(sums) < len(remainders) else None
    parts = [sums.get(each, zeros) for each in remainders]
    batch, channels = ctx.tensors[0].shape[:2]
    rank = len(steps)
    apart = ctx.reshape(ctx.op("Concat", *parts, axis=1), (batch, *steps, channels, *grid))
    pairs = [axis for k in range(rank) for axis in (2 + rank + k, 1 + k)]
    turned = ctx.transpose(apart, [0, 1 + rank, *pairs])
    whole = [count * step for count, step in zip(grid, steps, strict=True)]
    return ctx.reshape(turned, (batch, channels, *whole))


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
