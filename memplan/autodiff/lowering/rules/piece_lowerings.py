"""Joining, splitting, reducing, passing through: standard operators under other names."""

from __future__ import annotations

import numpy as np
import onnx

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.value import Value
from memplan.autodiff.lowering.lowering_registry import Results, lowering
from memplan.errors import ModelError
from memplan.shapes.tensor_type import Dim

_BOOL = onnx.TensorProto.BOOL


@lowering("ConcatTraining")
def concat(ctx: Context) -> Results:
    """Concat; the second output is how long each input is."""
    axis = ctx.axis(0, ctx.tensors[0].rank)
    joined = ctx.op("Concat", *ctx.tensors, axis=axis)
    if len(ctx.outputs) < 2 or ctx.outputs[1] is None:
        return [joined]
    return [joined, ctx.vector([ctx.dims(value, [axis]) for value in ctx.tensors])]


@lowering("SplitTraining", inputs=2)
def split(ctx: Context) -> Results:
    """Split."""
    data, sizes = ctx.tensors[:2]
    axis = ctx.axis(0, data.rank)
    return ctx.ops("Split", data, sizes, outputs=len(ctx.node.output), axis=axis)


@lowering("ReduceSumTraining", inputs=2)
def reduce_sum(ctx: Context) -> Results:
    """ReduceSum."""
    data, axes = ctx.tensors[:2]
    keep = ctx.attribute("keepdims", 1)
    without = ctx.attribute("noop_with_empty_axes", 0)
    return [ctx.op("ReduceSum", data, axes, keepdims=keep, noop_with_empty_axes=without)]


@lowering("Scale", inputs=2)
def scale(ctx: Context) -> Results:
    """Times, or by, a number."""
    data, factor = ctx.tensors[:2]
    factor = ctx.cast(ctx.squeeze(factor, range(factor.rank)), data.dtype)
    return [data / factor if ctx.attribute("scale_down", 0) else data * factor]


@lowering("ScaledSum", inputs=2)
def scaled_sum(ctx: Context) -> Results:
    """A weighted sum of two or three tensors."""
    parts = [value * ctx.attribute(f"scale_{k}", 1.0) for k, value in enumerate(ctx.tensors[:3])]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return [total]


@lowering("MixedPrecisionScale", inputs=2)
def mixed_precision_scale(ctx: Context) -> Results:
    """Gradients times a scale, in another type."""
    factor, *parts = ctx.tensors
    if ctx.attribute("fuse_outputs", 0):
        raise ModelError(
            f"MixedPrecisionScale '{ctx.node.name}' joins its outputs",
            "export the model without fused outputs",
        )
    kind = ctx.attribute("to", parts[0].dtype)
    wide = ctx.squeeze(factor, range(factor.rank))
    return [ctx.cast(ctx.cast(part, wide.dtype) * wide, kind) for part in parts]


@lowering("DivGrad", inputs=3)
def div_grad(ctx: Context) -> Results:
    """Of a/b: dy/b and -dy·a/b², summed over what was broadcast."""
    dy, a, b = ctx.tensors[:3]
    first = dy / b
    found = (ctx.sum_to(first, dy, a), ctx.sum_to(-(first * a / b), dy, b))
    return [ctx.reshape_like(grad, value) for grad, value in zip(found, (a, b), strict=True)]


@lowering("PassThrough")
def pass_through(ctx: Context) -> Results:
    """What comes in goes out."""
    return ctx.tensors


@lowering("Group")
def group(ctx: Context) -> Results:
    """A signal that its inputs are there."""
    return [ctx.const(np.asarray(True))]


@lowering("ZeroGradient", inputs=2)
def zero_gradient(ctx: Context) -> Results:
    """Zeros."""
    return [ctx.full_like(ctx.tensors[0])]


# -- gradients summed over steps ---------------------------------------------------------------


@lowering("InPlaceAccumulatorV2", inputs=2)
def accumulate(ctx: Context) -> Results:
    """A flag that says nothing, and the buffer plus the value, or the value alone."""
    buffer, value = ctx.tensors[:2]
    value, overwrite = ctx.cast(value, buffer.dtype), ctx.input(2)
    total = buffer + value
    if overwrite is not None:
        flag = ctx.squeeze(overwrite, range(overwrite.rank))
        total = ctx.op("Where", flag, value, total)
    return [ctx.const(np.asarray([True])), total]


@lowering("InPlaceAccumulator", inputs=2)
def accumulate_once(ctx: Context) -> Results:
    """The sum, where a signal says so."""
    buffer, value = ctx.tensors[:2]
    total, signal = buffer + ctx.cast(value, buffer.dtype), ctx.input(2)
    if signal is None:
        return [total]
    return [ctx.op("Where", ctx.squeeze(signal, range(signal.rank)), total, buffer)]


# -- broadcasting ------------------------------------------------------------------------------


@lowering("BroadcastGradientArgs", inputs=2)
def broadcast_axes(ctx: Context) -> Results:
    """The axes along which each of two shapes was repeated to fit the other."""
    shapes = ctx.tensors[:2]
    first, second = (_dims_in(ctx, shape) for shape in shapes)
    if first is not None and second is not None:
        pairs = ((first, second), (second, first))
        if all(_is_decided(mine, other) for mine, other in pairs):
            return [ctx.const(_repeated(mine, other)) for mine, other in pairs]
    first_rank, second_rank = (_length(ctx, shape) for shape in shapes)
    rank = max(first_rank, second_rank)
    padded = [
        ctx.vector([ctx.const([1] * (rank - length)), shape]) if length < rank else shape
        for shape, length in zip(shapes, (first_rank, second_rank), strict=True)
    ]
    ones = [ctx.op("Equal", shape, ctx.const([1])) for shape in padded]
    found = []
    for mine, other, length in ((0, 1, first_rank), (1, 0, second_rank)):
        hits = ctx.op("And", ones[mine], ctx.op("Not", ones[other]))
        missing = np.arange(rank) < rank - length
        hits = ctx.op("Or", hits, ctx.const(missing)) if missing.any() else hits
        found.append(ctx.squeeze(ctx.op("NonZero", hits), [0]))
    return found


def _dims_in(ctx: Context, shape: Value) -> tuple[Dim, ...] | None:
    """The dimensions that a shape holds, sizes or names, if that is known."""
    known = ctx.constant(shape)
    if known is not None:
        return tuple(int(size) for size in known)
    made = ctx.maker(shape)
    if made is None or made.op_type != "Shape" or any(a.name == "end" for a in made.attribute):
        return None
    if any(item.name == "start" and item.i for item in made.attribute):
        return None
    return ctx.tensor(made.input[0]).type.shape


def _is_decided(mine: tuple[Dim, ...], other: tuple[Dim, ...]) -> bool:
    """Whether shapes tell along which axes ``mine`` was repeated: a name may stand for 1."""
    pairs = zip(reversed(mine), reversed(other), strict=False)
    return all(isinstance(a, int) or a == b or b == 1 for a, b in pairs)


def _repeated(mine: tuple[Dim, ...], other: tuple[Dim, ...]) -> list[int]:
    """The axes along which ``mine`` was repeated, counted in the longer shape."""
    rank = max(len(mine), len(other))
    pairs = list(zip(reversed(mine), reversed(other), strict=False))
    inner = [rank - 1 - k for k, (a, b) in enumerate(pairs) if a == 1 != b]
    return [*range(rank - len(mine)), *reversed(inner)]


def _length(ctx: Context, shape: Value) -> int:
    length = shape.shape[0] if shape.rank else 0
    if not isinstance(length, int):
        raise ModelError(
            f"BroadcastGradientArgs '{ctx.node.name}': the rank of what it broadcasts is not known",
            "add value_info for it",
        )
    return length
