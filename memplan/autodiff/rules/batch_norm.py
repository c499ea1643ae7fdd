"""Batch normalization, with given statistics and with those of the batch.

Training mode is rewritten first: statistics by reductions, then the operator in inference mode.
ONNX Runtime's CPU kernel for training mode writes the running statistics into its inputs, and its
CUDA kernel ignores the mode; what is left here has a kernel on both. The backward part gets mean
and variance, and nothing in full size is saved for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import onnx

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradients, expansion, gradient
from memplan.autodiff.emit.value import Value
from memplan.autodiff.statistics import trains
from memplan.ops.book import SAME_ELEMENTS
from memplan.proto.nodes import operator_key
from memplan.shapes.tensor_type import NARROW_FLOATS

_EPSILON = 1e-5
_CASTS = frozenset({":Cast"})


@expansion("BatchNormalization", when=trains, everywhere=True)
def training_mode(ctx: Context) -> Sequence[Value | None]:
    """Mean and variance of the batch, normalization by them, and the new running statistics."""
    x, scale, bias, mean_before, variance_before = ctx.tensors
    axes = [0, *range(2, x.rank)]
    kind = mean_before.dtype
    numbers = ctx.cast(x, kind) if x.dtype in NARROW_FLOATS else x
    mean = ctx.reduce("ReduceMean", numbers, axes)
    variance = _variance(ctx, numbers - mean, axes)
    mean = ctx.reshape(mean, (x.shape[1],))
    epsilon = ctx.attribute("epsilon", _EPSILON)
    y = ctx.op("BatchNormalization", x, scale, bias, mean, variance, epsilon=epsilon)
    keep = ctx.attribute("momentum", 0.9)

    def running(slot: int, before: Value, now: Value) -> Value | None:
        wanted = slot < len(ctx.outputs) and ctx.outputs[slot] is not None
        return before * keep + now * (1 - keep) if wanted else None

    return [
        y,
        running(1, mean_before, mean),
        running(2, variance_before, variance),
        mean,
        variance,
    ][: len(ctx.outputs)]


def _variance(ctx: Context, apart: Value, axes: Sequence[int]) -> Value:
    """The mean of squares, without a tensor for them where the number of elements is known."""
    count = ctx.constant(ctx.count(apart, axes, apart.dtype))
    if count is None:
        return ctx.reduce("ReduceMean", apart * apart, axes, keepdims=False)
    return ctx.reduce("ReduceSumSquare", apart, axes, keepdims=False) * (1 / float(count.item()))


def _shared(ctx: Context, total: Value, count: Value, sign: int) -> Value:
    known = ctx.constant(count)
    return total / count * sign if known is None else total * (sign / float(known.item()))


@gradient("BatchNormalization", outputs=(0,))
def batch_norm(ctx: Context) -> Gradients:
    """y = a·(x - μ) + b with a = γ/σ per channel, from x, μ and σ².

    Of statistics of the batch, dx = a·dy - a/(m·σ)·dγ·(x - μ) - a/m·dβ, where m elements have
    one channel: the last two terms are a batch normalization of x themselves.
    """
    x, scale, _, mean, variance = ctx.tensors
    axes = [0, *range(2, x.rank)]
    epsilon = ctx.attribute("epsilon", _EPSILON)
    column = (x.shape[1], *[1] * (x.rank - 2))
    of_batch = _is_mean(ctx, mean, x) and _is_variance(ctx, variance, x)

    @cache
    def deviation() -> Value:
        return ctx.op("Sqrt", variance + epsilon)

    @cache
    def for_bias() -> Value:
        return ctx.cast(ctx.sum(ctx.dy, axes, keepdims=False), mean.dtype)

    @cache
    def for_scale() -> Value:
        product = ctx.cast(ctx.sum(ctx.dy * x, axes, keepdims=False), mean.dtype)
        return (product - mean * for_bias()) / deviation()

    @cache
    def slope() -> Value:
        return ctx.cast(scale, mean.dtype) / deviation()

    def for_x() -> Value:
        rest: Value | None = None
        if of_batch:
            share = _shared(ctx, slope(), ctx.count(x, axes, mean.dtype), -1)
            factors = [ctx.cast(share * part, scale.dtype) for part in (for_scale(), for_bias())]
            rest = ctx.op("BatchNormalization", x, *factors, mean, variance, epsilon=epsilon)
        direct = ctx.dy * ctx.reshape(ctx.cast(slope(), x.dtype), column)
        return direct if rest is None else rest + direct

    return (
        for_x,
        lambda: ctx.cast(for_scale(), scale.dtype),
        lambda: ctx.cast(for_bias(), scale.dtype),
        None if of_batch else lambda: -(slope() * for_bias()),
        None if of_batch else lambda: slope() * for_scale() / deviation() * -0.5,
    )


# -- statistics of the batch, as they are found in graphs ----------------------------------------


def _is_mean(ctx: Context, value: Value, x: Value) -> bool:
    """Whether ``value`` is the mean of ``x`` over everything but channels."""
    made = ctx.maker(_behind(ctx, value, SAME_ELEMENTS))
    if made is None or made.op_type != "ReduceMean" or not _spares_channels(ctx, made, x):
        return False
    return _behind(ctx, ctx.tensor(made.input[0]), _CASTS) == x


def _is_variance(ctx: Context, value: Value, x: Value) -> bool:
    """Whether it is the variance: Σ(x - mean)² over the number of elements, or the mean of that."""
    made = ctx.maker(_behind(ctx, value, SAME_ELEMENTS))
    if made is not None and made.op_type == "Mul":
        share, count = ctx.constant(ctx.tensor(made.input[1])), x.type.elements
        channels = x.shape[1]
        if share is None or share.size != 1 or not count or not isinstance(channels, int):
            return False
        if not math.isclose(share.item() * count / channels, 1, rel_tol=1e-3):
            return False
        made = ctx.maker(ctx.tensor(made.input[0]))
        apart = made.input[0] if made is not None and made.op_type == "ReduceSumSquare" else ""
    else:
        squares = ctx.maker(ctx.tensor(made.input[0])) if made is not None else None
        mean = made is not None and made.op_type == "ReduceMean"
        double = squares is not None and squares.op_type == "Mul" and len(set(squares.input)) == 1
        apart = squares.input[0] if squares is not None and mean and double else ""
    minus = ctx.maker(ctx.tensor(apart)) if apart else None
    if (
        made is None
        or minus is None
        or minus.op_type != "Sub"
        or not _spares_channels(ctx, made, x)
    ):
        return False
    one, other = (ctx.tensor(name) for name in minus.input)
    return _behind(ctx, one, _CASTS) == x and _is_mean(ctx, other, x)


def _behind(ctx: Context, value: Value, ops: frozenset[str]) -> Value:
    """What ``value`` is a view or a cast of."""
    made = ctx.maker(value)
    while made is not None and operator_key(made) in ops:
        value = ctx.tensor(made.input[0])
        made = ctx.maker(value)
    return value


def _spares_channels(ctx: Context, node: onnx.NodeProto, x: Value) -> bool:
    """Whether a reduction goes over every axis but the second."""
    axes = Context(ctx.emitter, node).integers(1, "axes") or []
    return sorted(axis % x.rank for axis in axes) == [0, *range(2, x.rank)]
