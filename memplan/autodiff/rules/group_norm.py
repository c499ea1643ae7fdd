"""Normalization of groups of channels of each sample: group and instance normalization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import onnx

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradients, expansion, gradient
from memplan.autodiff.emit.value import Value
from memplan.shapes.tensor_type import NARROW_FLOATS, Dim, TensorType

_EPSILON = 1e-5
_PER_CHANNEL = 21
"""The first opset in which GroupNormalization scales channels rather than groups."""
_FLOAT = onnx.TensorProto.FLOAT


@expansion("GroupNormalization")
def group_norm_forward(ctx: Context) -> Sequence[Value | None]:
    """As exporters write it for older opsets: ONNX Runtime has no kernel for the operator.

    The reverse pass sees it as one operator again (:mod:`memplan.autodiff.forward.patterns`).
    """
    x, scale, bias = ctx.tensors
    groups = ctx.attribute("num_groups", 1)
    epsilon = ctx.attribute("epsilon", _EPSILON)
    whole = _grouped(ctx, x, groups)
    if ctx.opset < _PER_CHANNEL:
        y = ctx.op("InstanceNormalization", whole, scale, bias, epsilon=epsilon)
        return [ctx.reshape_like(y, x)]
    ctx.require_room(groups)
    ones, zeros = (ctx.const(np.full(groups, n), x.dtype) for n in (1, 0))
    y = ctx.op("InstanceNormalization", whole, ones, zeros, epsilon=epsilon)
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
        self.epsilon = ctx.attribute("epsilon", _EPSILON)
        self.mean = ctx.reduce("ReduceMean", self.whole, [2])
        squares = ctx.reduce("ReduceSumSquare", self.whole - self.mean, [2])
        self.variance = squares * self.share
        self.deviation = ctx.op("Sqrt", self.variance + self.epsilon)

    def affine(self, scale: Value, bias: Value) -> Value:
        """scale·(x - μ)/σ + bias, all of them N × groups × 1; in the shape of ``whole``."""
        ctx, count = self.ctx, self.whole.shape[2]
        if not isinstance(count, int):
            slope = scale / self.deviation
            return self.whole * slope + (bias - self.mean * slope)
        flat = [ctx.reshape(v, ("",)) for v in (scale, bias, self.mean, self.variance)]
        rows = ctx.reshape(self.whole, (1, "", count))
        y = ctx.op("BatchNormalization", rows, *flat, epsilon=self.epsilon)
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
