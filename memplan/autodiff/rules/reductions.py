"""Reductions. A gradient that is equal along an axis stays of size 1 there."""

from __future__ import annotations

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradients, gradient
from memplan.autodiff.emit.value import Value


def _axes(ctx: Context) -> list[int]:
    """The reduced axes, counted from the front."""
    rank = ctx.tensors[0].rank
    given = ctx.integers(1, "axes")
    if not given:
        return [] if ctx.attribute("noop_with_empty_axes", 0) else list(range(rank))
    return sorted(axis % rank for axis in given)


def _kept(ctx: Context, value: Value, axes: list[int]) -> Value:
    """``value``, of the output's shape or broadcasting to it, with the reduced axes as ones."""
    if ctx.attribute("keepdims", 1) or value.rank == 0 or not axes:
        return value
    rank = ctx.tensors[0].rank - len(axes)
    if value.rank < rank:  # smaller than the output: the axes that it left out come first
        value = ctx.unsqueeze(value, list(range(rank - value.rank)))
    return ctx.unsqueeze(value, axes)


@gradient("ReduceSum", broadcast=True)
def reduce_sum(ctx: Context) -> Gradients:
    """The same to every element."""
    return (_kept(ctx, ctx.dy, _axes(ctx)),)


@gradient("ReduceMean", broadcast=True)
def reduce_mean(ctx: Context) -> Gradients:
    """The same share to every element."""
    axes = _axes(ctx)
    return (_kept(ctx, ctx.over_count(ctx.dy, ctx.tensors[0], axes), axes),)


@gradient("ReduceMax", "ReduceMin", broadcast=True)
def reduce_extreme(ctx: Context) -> Gradients:
    """To the elements that have the extreme value, evenly."""
    x, axes = ctx.tensors[0], _axes(ctx)
    hits = ctx.cast(ctx.op("Equal", x, _kept(ctx, ctx.y, axes)), x.dtype)
    return (hits * (_kept(ctx, ctx.dy, axes) / ctx.sum(hits, axes)),)


@gradient("ReduceProd", broadcast=True)
def reduce_product(ctx: Context) -> Gradients:
    """y / x; where x is 0, the product of the others if no other is 0."""
    x, axes = ctx.tensors[0], _axes(ctx)
    zero = ctx.op("Equal", x, 0)
    safe = ctx.op("Where", zero, 1, x)
    zeros = ctx.sum(ctx.cast(zero, x.dtype), axes)
    others = ctx.op("Where", ctx.op("Equal", zeros, 1), ctx.reduce("ReduceProd", safe, axes), 0)
    slope = ctx.op("Where", zero, others, _kept(ctx, ctx.y, axes) / safe)
    return (_kept(ctx, ctx.dy, axes) * slope,)


@gradient("ReduceL1", broadcast=True)
def reduce_l1(ctx: Context) -> Gradients:
    """Σ|x|. Over no axes, runtimes differ on whether that is |x| or x: x / y is right for both."""
    x, axes = ctx.tensors[0], _axes(ctx)
    sign = ctx.op("Sign", x if axes else x / ctx.y)
    return (_kept(ctx, ctx.dy, axes) * sign,)


@gradient("ReduceL2", broadcast=True)
def reduce_l2(ctx: Context) -> Gradients:
    """√Σx²: x / y; 0 where all are 0."""
    share = ctx.op("Where", ctx.op("Equal", ctx.y, 0), 0, ctx.dy / ctx.y)
    return (_kept(ctx, share, _axes(ctx)) * ctx.tensors[0],)


@gradient("ReduceSumSquare", broadcast=True)
def reduce_sum_square(ctx: Context) -> Gradients:
    """Σx²."""
    return (_kept(ctx, ctx.dy * 2, _axes(ctx)) * ctx.tensors[0],)


@gradient("ReduceLogSumExp", broadcast=True)
def reduce_log_sum_exp(ctx: Context) -> Gradients:
    """ln Σeˣ: the softmax."""
    x, axes = ctx.tensors[0], _axes(ctx)
    return (_kept(ctx, ctx.dy, axes) * ctx.op("Exp", x - _kept(ctx, ctx.y, axes)),)


@gradient("CumSum", inputs=(0,))
def cumulative_sum(ctx: Context) -> Gradients:
    """A sum from the other end."""
    reverse = 1 - ctx.attribute("reverse", 0)
    exclusive = ctx.attribute("exclusive", 0)
    axis = ctx.inputs[1]
    return (ctx.op("CumSum", ctx.dy, axis, exclusive=exclusive, reverse=reverse),)
