"""Activation functions, from the output where its sign and value are enough."""

from __future__ import annotations

import math

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradients, gradient
from memplan.autodiff.emit.value import Number, Value

_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def _above(ctx: Context, value: Value, bound: float = 0.0) -> Value:
    return ctx.op("Greater", value, bound)


def _choose(ctx: Context, test: Value, yes: Value | Number, no: Value | Number) -> Value:
    """``Where`` in the gradient's element type, numbers on either side."""
    kind = ctx.dy.dtype
    sides = [item if isinstance(item, Value) else ctx.const(item, kind) for item in (yes, no)]
    return ctx.op("Where", test, *sides)


@gradient("Relu", elementwise=True)
def relu(ctx: Context) -> Gradients:
    """From the output; 0 at 0."""
    return (_choose(ctx, _above(ctx, ctx.y), ctx.dy, 0),)


@gradient("LeakyRelu", elementwise=True)
def leaky_relu(ctx: Context) -> Gradients:
    """From the output, whose sign is the input's where alpha is positive."""
    alpha = ctx.attribute("alpha", 0.01)
    sign = ctx.y if alpha > 0 else ctx.tensors[0]
    return (ctx.dy * _choose(ctx, _above(ctx, sign), 1, alpha),)


@gradient("PRelu", elementwise=True)
def prelu(ctx: Context) -> Gradients:
    """A slope that is learnt, up to 0: as LeakyRelu, and as PyTorch has it at 0."""
    x, slope = ctx.tensors
    return (
        lambda: ctx.dy * _choose(ctx, _above(ctx, x), 1, slope),
        lambda: ctx.dy * ctx.op("Min", x, 0),
    )


@gradient("Elu", elementwise=True)
def elu(ctx: Context) -> Gradients:
    """From the output: below 0, α·eˣ = y + α."""
    alpha = ctx.attribute("alpha", 1.0)
    if alpha > 0:
        return (ctx.dy * _choose(ctx, _above(ctx, ctx.y), 1, ctx.y + alpha),)
    x = ctx.tensors[0]
    return (ctx.dy * _choose(ctx, _above(ctx, x), 1, ctx.op("Exp", x) * alpha),)


@gradient("Selu", elementwise=True)
def selu(ctx: Context) -> Gradients:
    """From the output: below 0, γ·α·eˣ = y + γ·α."""
    alpha = ctx.attribute("alpha", _SELU_ALPHA)
    gamma = ctx.attribute("gamma", _SELU_GAMMA)
    if alpha > 0 and gamma > 0:
        return (ctx.dy * _choose(ctx, _above(ctx, ctx.y), gamma, ctx.y + gamma * alpha),)
    x = ctx.tensors[0]
    below = ctx.op("Exp", x) * (gamma * alpha)
    return (ctx.dy * _choose(ctx, _above(ctx, x), gamma, below),)


@gradient("Celu", elementwise=True)
def celu(ctx: Context) -> Gradients:
    """From the output, whose sign is the input's: below 0, exp(x/α) = y/α + 1."""
    alpha = ctx.attribute("alpha", 1.0)
    return (ctx.dy * _choose(ctx, _above(ctx, ctx.y), 1, ctx.y * (1 / alpha) + 1),)


@gradient("HardSigmoid", elementwise=True)
def hard_sigmoid(ctx: Context) -> Gradients:
    """From the output: α strictly between 0 and 1."""
    inside = ctx.op("And", _above(ctx, ctx.y), ctx.op("Less", ctx.y, 1))
    return (_choose(ctx, inside, ctx.dy * ctx.attribute("alpha", 0.2), 0),)


@gradient("HardSwish", elementwise=True)
def hard_swish(ctx: Context) -> Gradients:
    """x·max(0, min(1, x/6 + 1/2))."""
    x = ctx.tensors[0]
    middle = _choose(ctx, ctx.op("Less", x, 3), x * (1 / 3) + 0.5, 1)
    return (ctx.dy * _choose(ctx, _above(ctx, x, -3), middle, 0),)


@gradient("Mish", elementwise=True)
def mish(ctx: Context) -> Gradients:
    """x·tanh(softplus(x))."""
    x = ctx.tensors[0]
    t = ctx.op("Tanh", ctx.op("Softplus", x))
    return (ctx.dy * (t + x * ctx.op("Sigmoid", x) * (1 - t * t)),)


@gradient("Swish", elementwise=True)
def swish(ctx: Context) -> Gradients:
    """x·σ(αx)."""
    x, alpha = ctx.tensors[0], ctx.attribute("alpha", 1.0)
    s = ctx.op("Sigmoid", x * alpha)
    return (ctx.dy * s * (x * alpha * (1 - s) + 1),)


@gradient("Gelu", elementwise=True)
def gelu(ctx: Context) -> Gradients:
    """x·Φ(x), exact or by tanh (Hendrycks and Gimpel 2016, arXiv:1606.08415)."""
    x = ctx.tensors[0]
    if ctx.attribute("approximate", "none") == "tanh":
        # ½·(1 + tanh u) = σ(2u) = s, so the derivative is s·(1 + (1 - s)·x·d2u/dx).
        a, b = 2 * math.sqrt(2 / math.pi), 0.044715
        square = x * x
        s = ctx.op("Sigmoid", x * (square * (a * b) + a))
        slope = x * (square * (3 * a * b) + a)
        return (ctx.dy * (s * ((1 - s) * slope + 1)),)
    # With u = x/√2 the derivative is u·exp(-u²)/√π + ½·(1 + erf u); the factor is in the exponent.
    u = x * math.sqrt(0.5)
    bell = ctx.op("Exp", ctx.const(-0.5 * math.log(math.pi), u.dtype) - u * u)
    return (ctx.dy * (u * bell + (ctx.op("Erf", u) + 1) * 0.5),)
