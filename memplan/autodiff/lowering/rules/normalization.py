"""Normalizations, forward and backward."""

from __future__ import annotations

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.value import Value
from memplan.autodiff.lowering.gradient_lowerings import Forward, gradients, wanted
from memplan.autodiff.lowering.lowering_registry import Results, lowering
from memplan.autodiff.rules.layer_norm import row_gradients, wide

_EPSILON, _MOMENTUM = 1e-5, 0.9


# -- of rows -----------------------------------------------------------------------------------


@lowering("LayerNormalizationGrad", inputs=5)
def layer_norm_grad(ctx: Context) -> Results:
    """From x, mean and inverse deviation; the bias has the shape of the scale."""
    dy, x, scale, mean, inverse = ctx.tensors[:5]
    forward = Forward("LayerNormalization", dy, [x, scale, scale], [dy, mean, inverse])
    return gradients(ctx, forward, wanted(ctx, 3))


@lowering("InvertibleLayerNormalizationGrad", inputs=5)
def invertible_layer_norm_grad(ctx: Context) -> Results:
    """From the output, of which the normalized input is made again: n = (y - β)/γ."""
    dy, y, scale, bias, inverse = ctx.tensors[:5]
    normal = (wide(ctx, y) - wide(ctx, bias)) / wide(ctx, scale)
    found = row_gradients(ctx, dy, scale, bias, normal, wide(ctx, inverse), centred=True)
    return [build() for build in found]


@lowering("SimplifiedLayerNormalization", inputs=2)
def simplified_layer_norm(ctx: Context) -> Results:
    """γ·x over its root mean square; the inverse of the latter is the second output."""
    x, scale = ctx.tensors[:2]
    numbers = wide(ctx, x)
    axes = range(ctx.axis(-1, x.rank), x.rank)
    square = ctx.reduce("ReduceMean", numbers * numbers, axes)
    root = ctx.op("Sqrt", square + ctx.attribute("epsilon", _EPSILON))
    inverse = ctx.op("Reciprocal", root)
    return [ctx.cast(numbers * inverse, scale.dtype) * scale, inverse]


@lowering("SimplifiedLayerNormalizationGrad", inputs=4)
def simplified_layer_norm_grad(ctx: Context) -> Results:
    """From x and the inverse of its root mean square."""
    dy, x, scale, inverse = ctx.tensors[:4]
    inverse = wide(ctx, inverse)
    normal = wide(ctx, x) * inverse
    found = row_gradients(ctx, dy, scale, None, normal, inverse, centred=False)
    return [build() for build in found]


# -- of channels -------------------------------------------------------------------------------


@lowering("BatchNormInternal", inputs=5)
def batch_norm(ctx: Context) -> Results:
    """Training mode. Outputs: y, new running mean and variance, mean and inverse deviation of the
    batch."""
    x, scale, bias, mean_before, variance_before = ctx.tensors[:5]
    axes, others = [0, *range(2, x.rank)], list(range(1, x.rank - 1))
    mean = ctx.reduce("ReduceMean", x, axes)
    apart = x - mean
    variance = ctx.reduce("ReduceMean", apart * apart, axes)
    inverse = ctx.op("Reciprocal", ctx.op("Sqrt", variance + ctx.attribute("epsilon", _EPSILON)))
    y = apart * (inverse * ctx.unsqueeze(scale, others)) + ctx.unsqueeze(bias, others)
    keep = ctx.attribute("momentum", _MOMENTUM)
    mean, variance, inverse = (_vector(ctx, v, scale) for v in (mean, variance, inverse))
    return [
        y,
        mean_before * keep + mean * (1 - keep),
        variance_before * keep + variance * (1 - keep),
        mean,
        inverse,
    ]


@lowering("BatchNormalizationGrad", inputs=5)
def batch_norm_grad(ctx: Context) -> Results:
    """dx = γ/σ·(dy - mean(dy) - n·mean(dy·n)) with n = (x - μ)/σ, of statistics of the batch."""
    dy, x, scale, mean, inverse = ctx.tensors[:5]
    axes, others = [0, *range(2, x.rank)], list(range(1, x.rank - 1))
    columns = (ctx.unsqueeze(v, others) for v in (scale, mean, inverse))
    wide_scale, wide_mean, wide_inverse = columns
    normal = (x - wide_mean) * wide_inverse
    product = dy * normal
    bias_grad = ctx.sum(dy, axes)
    scale_grad = ctx.sum(product, axes)
    count = ctx.count(x, axes, x.dtype)
    shared = (bias_grad + normal * scale_grad) / count
    dx = (dy - shared) * (wide_scale * wide_inverse)
    return [dx, _vector(ctx, scale_grad, scale), _vector(ctx, bias_grad, scale)]


def _vector(ctx: Context, column: Value, like: Value) -> Value:
    """One number per channel: ``1 × C × 1 ...`` as a vector."""
    return ctx.reshape_like(column, like)
