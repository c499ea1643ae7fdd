"""Normalizations without parameters."""

from __future__ import annotations

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradients, gradient
from memplan.autodiff.emit.value import Value


@gradient("LpNormalization")
def lp_normalization(ctx: Context) -> Gradients:
    """From y = x/‖x‖ and the norm: (dy - s·Σ dy·y)/‖x‖, s being y (p = 2) or its sign (p = 1)."""
    x, power = ctx.tensors[0], ctx.attribute("p", 2)
    axes = [ctx.axis(-1, x.rank)]
    with ctx.in_forward():
        norm = ctx.reduce(f"ReduceL{power}", x, axes)
    along = ctx.sum(ctx.dy * ctx.y, axes)
    direction = ctx.y if power == 2 else ctx.op("Sign", ctx.y)
    inverse = ctx.op("Where", ctx.op("Equal", norm, 0), 0, ctx.op("Reciprocal", norm))
    return ((ctx.dy - direction * along) * inverse,)


@gradient("LRN")
def local_response(ctx: Context) -> Gradients:
    """From x: y = x·D^-β, D = bias + α/size·Σx² over neighbouring channels."""
    x, size = ctx.tensors[0], ctx.attribute("size", 1)
    alpha, beta = ctx.attribute("alpha", 1e-4) / size, ctx.attribute("beta", 0.75)
    before, behind = (size - 1) // 2, size // 2
    base = _neighbours(ctx, x * x, before, behind) * alpha + ctx.attribute("bias", 1.0)
    direct = ctx.dy * ctx.op("Pow", base, ctx.const(-beta, x.dtype))
    # dy·x·D^(-β-1), of all channels that this one is a neighbour of
    along = _neighbours(ctx, direct * x / base, behind, before)
    return (direct - x * along * (2 * alpha * beta),)


def _neighbours(ctx: Context, value: Value, before: int, behind: int) -> Value:
    """Sums over neighbouring channels."""
    size = before + behind + 1
    if size == 1:
        return value
    rest = [1] * (value.rank - 2)
    zeros = [0] * (value.rank - 2)
    mean = ctx.op(
        "AveragePool",
        ctx.unsqueeze(value, [1]),
        kernel_shape=[size, *rest],
        pads=[before, *zeros, behind, *zeros],
        count_include_pad=1,
    )
    return ctx.squeeze(mean, [1]) * size
