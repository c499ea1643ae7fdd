"""Normalizations, forward and backward."""

from __future__ import annotations

import onnx

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.value import Value
from memplan.autodiff.lowering.gradient_lowerings import Forward, gradients, wanted
from memplan.autodiff.lowering.lowering_registry import Results, lowering

_EPSILON, _MOMENTUM = 1e-5, 0.9
_FLOAT, _DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE


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
    normal = (_wide(ctx, y) - _wide(ctx, bias)) / _wide(ctx, scale)
    return _row_gradients(ctx, dy, scale, normal, _wide(ctx, inverse), centred=True)


@lowering("SimplifiedLayerNormalization", inputs=2)
def simplified_layer_norm(ctx: Context) -> Results:
    """γ·x over its root mean square; the inverse of the latter is the second output."""
    x, scale = ctx.tensors[:2]
    wide = _wide(ctx, x)
    axes = range(ctx.axis(-1, x.rank), x.rank)
    square = ctx.reduce("ReduceMean", wide * wide, axes)
    root = ctx.op("Sqrt", square + ctx.attribute("epsilon", _EPSILON))
    inverse = ctx.op("Reciprocal", root)
    return [ctx.cast(wide * inverse, scale.dtype) * scale, inverse]


@lowering("SimplifiedLayerNormalizationGrad", inputs=4)
def simplified_layer_norm_grad(ctx: Context) -> Results:
    """From x and the inverse of its root mean square."""
    dy, x, scale, inverse = ctx.tensors[:4]
    inverse = _wide(ctx, inverse)
    return _row_gradients(ctx, dy, scale, _wide(ctx, x) * inverse, inverse, centred=False)


def _row_gradients(
    ctx: Context, dy: Value, scale: Value, normal: Value, inverse: Value, *, centred: bool
) -> Results:
    """Of y = γ·n + β by x, γ and β: see :mod:`memplan.autodiff.rules.layer_norm`."""
    first = ctx.axis(-1, normal.rank)
    axes, wide = range(first, normal.rank), _wide(ctx, dy)
    weighted, product = wide * _wide(ctx, scale), wide * normal
    rest = weighted - normal * ctx.reduce("ReduceMean", weighted * normal, axes)
    if centred:
        rest = rest - ctx.reduce("ReduceMean", weighted, axes)
    sums = [ctx.sum(value, range(first), keepdims=False) for value in (product, wide)]
    found = [rest * inverse, *(ctx.reshape_like(total, scale) for total in sums)]
    return [ctx.cast(value, dy.dtype) for value in found]


def _wide(ctx: Context, value: Value) -> Value:
    """``value`` in the precision of the arithmetic: float32 at least, as in the kernels."""
    return ctx.cast(value, _DOUBLE if ctx.tensors[0].dtype == _DOUBLE else _FLOAT)


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
