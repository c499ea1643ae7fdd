"""Normalization of each row: the last axes, counted from ``axis``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import onnx

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradients, gradient
from memplan.autodiff.emit.value import Value
from memplan.errors import ModelError

_EPSILON = 1e-5
_FLOAT, _DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE


@gradient("LayerNormalization")
def layer_norm(ctx: Context) -> Gradients:
    """From x, with mean and inverse deviation saved by the operator; in float64 they are computed
    again, as it saves them in float32."""
    if any(grad is not None for grad in ctx.grads[1:]):
        raise ModelError(
            f"no gradient is known through the statistics of LayerNormalization '{ctx.node.name}'",
            "compute them by ReduceMean instead",
        )
    x, scale = ctx.tensors[:2]
    if x.dtype == _DOUBLE:
        centred = x - ctx.reduce("ReduceMean", x, _axes(ctx, x))
        inverse = _inverse_deviation(ctx, centred)
    else:
        mean, inverse = (wide(ctx, ctx.output(slot)) for slot in (1, 2))
        centred = wide(ctx, x) - mean
    return _row_gradients(ctx, scale, ctx.input(2), centred * inverse, inverse, centred=True)


@gradient("RMSNormalization")
def rms_norm(ctx: Context) -> Gradients:
    """From x; its inverse root mean square is computed again."""
    x = wide(ctx, ctx.tensors[0])
    inverse = _inverse_deviation(ctx, x)
    return _row_gradients(ctx, ctx.tensors[1], None, x * inverse, inverse, centred=False)


def _inverse_deviation(ctx: Context, x: Value) -> Value:
    """1 / √(mean(x²) + ε) of each row."""
    axes = _axes(ctx, x)
    square = ctx.over_count(ctx.reduce("ReduceSumSquare", x, axes), x, axes)
    root = ctx.op("Sqrt", square + ctx.attribute("epsilon", _EPSILON))
    return ctx.op("Reciprocal", root)


def _axes(ctx: Context, x: Value) -> list[int]:
    return list(range(ctx.axis(-1, x.rank), x.rank))


def wide(ctx: Context, value: Value) -> Value:
    """``value`` in the precision of the arithmetic: float32 at least, as in the operators."""
    return ctx.cast(value, _DOUBLE if ctx.tensors[0].dtype == _DOUBLE else _FLOAT)


def _row_gradients(
    ctx: Context,
    scale: Value,
    bias: Value | None,
    normal: Value,
    inverse: Value,
    *,
    centred: bool,
) -> Sequence[Callable[[], Value | None]]:
    """Of y = γ·n + β with n = (x - μ)·inverse: dx = inverse·(γdy - mean(γdy) - n·mean(γdy·n)).

    ``centred``: whether there is a μ, and the mean of γdy.
    """
    dy = wide(ctx, ctx.dy)

    @cache
    def product() -> Value:
        return dy * normal

    def summed(value: Value, target: Value) -> Value:
        total = ctx.reshape_like(ctx.sum_to(value, value, target), target)
        return ctx.cast(total, target.dtype)

    def for_x() -> Value:
        column = _column(ctx, scale, normal)
        if column is not None:  # products with a column need no tensor for γdy·n
            along, centre = ctx.op("MatMul", product(), column), ctx.op("MatMul", dy, column)
            weighted = dy * wide(ctx, scale)
        else:
            weighted, axes = dy * wide(ctx, scale), _axes(ctx, normal)
            along = ctx.reduce("ReduceMean", weighted * normal, axes)
            centre = ctx.reduce("ReduceMean", weighted, axes)
        rest = weighted - normal * along
        return ctx.cast((rest - centre if centred else rest) * inverse, ctx.dy.dtype)

    return (
        for_x,
        lambda: summed(product(), scale),
        lambda: None if bias is None else summed(dy, bias),
    )


def _column(ctx: Context, scale: Value, normal: Value) -> Value | None:
    """γ over the length of a row, as a column, where rows are the last axis alone."""
    length = normal.shape[-1]
    if len(_axes(ctx, normal)) > 1 or scale.shape != (length,) or not isinstance(length, int):
        return None
    return ctx.reshape(wide(ctx, scale) * (1 / length), (length, 1))
