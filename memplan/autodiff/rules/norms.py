"""Normalizations: of channels over the batch, of groups of channels of each sample, of rows.

A batch normalization in training mode is rewritten first: statistics by reductions, then the
operator in inference mode. ONNX Runtime's CPU kernel for training mode writes the running
statistics into its inputs, and its CUDA kernel ignores the mode; what is left here has a kernel on
both. The backward part gets mean and variance, and nothing in full size is saved for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import onnx

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradients, expansion, gradient
from memplan.autodiff.emit.value import Value
from memplan.autodiff.statistics import trains
from memplan.errors import ModelError
from memplan.ops.book import SAME_ELEMENTS
from memplan.proto.nodes import operator_key
from memplan.shapes.tensor_type import NARROW_FLOATS, Dim, TensorType

_CASTS = frozenset({":Cast"})
_PER_CHANNEL = 21
"""The first opset in which GroupNormalization scales channels rather than groups."""
_FLOAT, _DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE


# -- channels over the batch -----------------------------------------------------------------------


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
    y = ctx.op("BatchNormalization", x, scale, bias, mean, variance, epsilon=ctx.epsilon)
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
    column = (x.shape[1], *[1] * (x.rank - 2))
    of_batch = _is_mean(ctx, mean, x) and _is_variance(ctx, variance, x)

    @cache
    def deviation() -> Value:
        return ctx.op("Sqrt", variance + ctx.epsilon)

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
            rest = ctx.op("BatchNormalization", x, *factors, mean, variance, epsilon=ctx.epsilon)
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


# -- groups of channels of each sample -------------------------------------------------------------


@expansion("GroupNormalization")
def group_norm_forward(ctx: Context) -> Sequence[Value | None]:
    """As exporters write it for older opsets: ONNX Runtime has no kernel for the operator.

    The reverse pass sees it as one operator again (:mod:`memplan.autodiff.forward.patterns`).
    """
    x, scale, bias = ctx.tensors
    groups = ctx.attribute("num_groups", 1)
    whole = _grouped(ctx, x, groups)
    if ctx.opset < _PER_CHANNEL:
        y = ctx.op("InstanceNormalization", whole, scale, bias, epsilon=ctx.epsilon)
        return [ctx.reshape_like(y, x)]
    ctx.require_room(groups)
    ones, zeros = (ctx.const(np.full(groups, n), x.dtype) for n in (1, 0))
    y = ctx.op("InstanceNormalization", whole, ones, zeros, epsilon=ctx.epsilon)
    column = (x.shape[1], *[1] * (x.rank - 2))
    return [ctx.reshape_like(y, x) * ctx.reshape(scale, column) + ctx.reshape(bias, column)]


@gradient("GroupNormalization")
def group_norm(ctx: Context) -> Gradients:
    """From x, whose statistics are computed again. Scale and bias may have further axes of 1."""
    return _gradients(ctx, ctx.attribute("num_groups", 1))


@gradient("InstanceNormalization")
def instance_norm(ctx: Context) -> Gradients:
    """Every channel is a group."""
    channels = ctx.tensors[1].type.elements or ctx.tensors[0].shape[1]
    if not isinstance(channels, int):
        raise ctx.needs("the number of channels")
    return _gradients(ctx, channels)


def _grouped(ctx: Context, value: Value, groups: int) -> Value:
    """N × groups × the rest."""
    sizes = value.type.sizes
    rest: Dim = math.prod(sizes[1:]) // groups if sizes else ""
    shape = (value.shape[0], groups, rest)
    if value.shape == shape:
        return value
    target = ctx.const([0, groups, -1])
    return ctx.op("Reshape", value, target, result=TensorType(value.dtype, shape))


def _share(ctx: Context, x: Value, groups: int) -> Value | float:
    """One over the number of elements of a group."""
    count = ctx.count(x, range(1, x.rank), x.dtype)
    known = ctx.constant(count)
    return groups / float(known.item()) if known is not None else groups / count


class _Statistics:
    """μ, σ² and σ of each group, N × groups × 1, and normalizations by them."""

    def __init__(self, ctx: Context, x: Value, groups: int) -> None:
        self.ctx = ctx
        self.whole = _grouped(ctx, x, groups)
        self.share = _share(ctx, x, groups)
        self.mean = ctx.reduce("ReduceMean", self.whole, [2])
        squares = ctx.reduce("ReduceSumSquare", self.whole - self.mean, [2])
        self.variance = squares * self.share
        self.deviation = ctx.op("Sqrt", self.variance + ctx.epsilon)

    def affine(self, scale: Value, bias: Value) -> Value:
        """scale·(x - μ)/σ + bias, all of them N × groups × 1; in the shape of ``whole``."""
        ctx, count = self.ctx, self.whole.shape[2]
        if not isinstance(count, int):
            slope = scale / self.deviation
            return self.whole * slope + (bias - self.mean * slope)
        flat = [ctx.reshape(v, ("",)) for v in (scale, bias, self.mean, self.variance)]
        rows = ctx.reshape(self.whole, (1, "", count))
        y = ctx.op("BatchNormalization", rows, *flat, epsilon=ctx.epsilon)
        return ctx.reshape_like(y, self.whole)


def _gradients(ctx: Context, groups: int) -> Gradients:
    """y = γ·(x - μ)/σ + β, with μ and σ per sample and group of m elements.

    dx = γ/σ·dy - (x - μ)/(m·σ²)·Σγq - 1/(m·σ)·Σγdy, with q = Σ dy·(x - μ)/σ per channel and the
    other sums over a group. The last two terms are a normalization of x themselves.
    """
    scale, bias = ctx.tensors[1:3]
    kind = _FLOAT if ctx.tensors[0].dtype in NARROW_FLOATS else ctx.tensors[0].dtype
    x, dy = ctx.cast(ctx.tensors[0], kind), ctx.cast(ctx.dy, kind)
    spatial = list(range(2, x.rank))

    @cache
    def statistics() -> _Statistics:
        return _Statistics(ctx, x, groups)

    @cache
    def of_gradient() -> Value:
        """Σ dy of each channel: N × groups × channels of one."""
        return _grouped(ctx, ctx.sum(dy, spatial, keepdims=False), groups)

    @cache
    def along() -> Value:
        """q, in the same shape."""
        product = _grouped(ctx, ctx.sum(dy * x, spatial, keepdims=False), groups)
        return (product - statistics().mean * of_gradient()) / statistics().deviation

    def over_samples(value: Value, target: Value) -> Value:
        total = ctx.sum(value, [0], keepdims=False)
        return ctx.cast(ctx.reshape_like(total, target), target.dtype)

    def for_x() -> Value:
        elements = scale.type.elements
        channels: Dim = elements // groups if elements is not None else ""
        factors = ctx.reshape(ctx.cast(scale, kind), (groups, channels))
        sums = [factors * along(), factors * of_gradient()]
        if channels != 1:
            sums = [ctx.sum(part, [2]) for part in sums]
        less = -statistics().share / statistics().deviation
        rest = ctx.reshape_like(statistics().affine(less * sums[0], less * sums[1]), x)
        slope = factors / statistics().deviation
        column = TensorType(kind, (*x.shape[:2], *[1] * len(spatial)))
        places = ctx.const([0, -1] + [1] * len(spatial))
        slope = ctx.op("Reshape", slope, places, result=column)
        return ctx.cast(rest + dy * slope, ctx.tensors[0].dtype)

    return (
        for_x,
        lambda: over_samples(along(), scale),
        lambda: over_samples(of_gradient(), bias),
    )


# -- rows: the last axes, counted from ``axis`` ----------------------------------------------------


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
    root = ctx.op("Sqrt", square + ctx.epsilon)
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
