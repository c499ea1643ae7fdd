"""Convolutions, and their transposes."""

from __future__ import annotations

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradients, gradient
from memplan.autodiff.emit.value import Value
from memplan.autodiff.rules.windows import Windows, correlate, spread, windows_of
from memplan.errors import ModelError
from memplan.shapes.tensor_type import TensorType


@gradient("Conv")
def conv(ctx: Context) -> Gradients:
    """dX is a transposed convolution of dY, dW a convolution of X by dY, dB a sum of dY."""
    x, weight = ctx.tensors[:2]
    windows = windows_of(ctx, _kernel(ctx, weight), x.shape[2:], ctx.y.shape[2:])
    group = ctx.attribute("group", 1)
    return (
        lambda: spread(ctx, ctx.dy, weight, windows, x.shape, group, x),
        lambda: correlate(ctx, x, ctx.dy, windows, weight, group),
        lambda: _bias(ctx),
    )


@gradient("ConvTranspose")
def conv_transpose(ctx: Context) -> Gradients:
    """The other way round: dX is a convolution of dY, dW a convolution of dY by X."""
    x, weight = ctx.tensors[:2]
    windows = _transposed_windows(ctx, x, weight)
    group = ctx.attribute("group", 1)
    return (
        lambda: _gathered(ctx, x, weight, windows, group),
        lambda: correlate(ctx, ctx.dy, x, windows, weight, group),
        lambda: _bias(ctx),
    )


def _kernel(ctx: Context, weight: Value) -> tuple[int, ...]:
    sizes = weight.type.sizes
    if sizes is None:
        raise ModelError(
            f"the gradient of {ctx.node.op_type} '{ctx.node.name}' needs the weight's shape",
            "add value_info for it",
        )
    return sizes[2:]


def _bias(ctx: Context) -> Value:
    return ctx.sum(ctx.dy, [0, *range(2, ctx.dy.rank)], keepdims=False)


def _transposed_windows(ctx: Context, x: Value, weight: Value) -> Windows:
    """``output_shape`` and ``auto_pad`` say the size of the output; the rest is padding.

    An odd rest stands in front, but behind under ``SAME_UPPER``, as in ONNX Runtime (ONNX's text
    leaves ``NOTSET`` open).
    """
    stated, counts = ctx.attribute("output_shape", list[int]()), x.shape[2:]
    sizes = tuple(stated[-len(counts) :]) or ctx.y.shape[2:]
    windows = windows_of(ctx, _kernel(ctx, weight), sizes, counts)
    auto = ctx.attribute("auto_pad", "NOTSET")
    if auto.startswith("SAME") or stated:
        further = ctx.attribute("output_padding", list[int]())
        upper = auto == "SAME_UPPER"
        return windows.filling(ctx, sizes, counts, upper=upper, further=further)
    return windows


def _gathered(ctx: Context, x: Value, weight: Value, windows: Windows, group: int) -> Value:
    further = ctx.attribute("output_padding", list[int]()) or [0] * windows.rank
    beyond = [k for k in range(windows.rank) if further[k] >= windows.strides[k]]
    found = ctx.op(
        "Conv",
        ctx.dy,
        weight,
        strides=list(windows.strides),
        dilations=list(windows.dilations),
        pads=[*windows.before, *windows.behind],
        group=group if group != 1 else None,
        result=None if beyond else TensorType(ctx.dy.dtype, x.shape),
    )
    for axis in beyond:  # windows that no element of x stood for
        ends, shape = ctx.dims(x, [2 + axis]), list(found.shape)
        shape[2 + axis] = x.shape[2 + axis]
        kept = TensorType(x.dtype, tuple(shape))
        found = ctx.slice(found, [0], ends, [2 + axis], result=kept)
    return found
