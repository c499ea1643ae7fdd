"""Elementwise functions of one tensor, from the output where that is enough."""

from __future__ import annotations

import math

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradients, gradient


@gradient("Exp", elementwise=True)
def exp(ctx: Context) -> Gradients:
    """From the output."""
    return (ctx.dy * ctx.y,)


@gradient("Log", elementwise=True)
def log(ctx: Context) -> Gradients:
    """ln x."""
    return (ctx.dy / ctx.tensors[0],)


@gradient("Erf", elementwise=True)
def erf(ctx: Context) -> Gradients:
    """2/√π · exp(-x²)."""
    x = ctx.tensors[0]
    return (ctx.dy * (2 / math.sqrt(math.pi)) * ctx.op("Exp", -(x * x)),)


@gradient("Sin", elementwise=True)
def sin(ctx: Context) -> Gradients:
    """cos x."""
    return (ctx.dy * ctx.op("Cos", ctx.tensors[0]),)


@gradient("Cos", elementwise=True)
def cos(ctx: Context) -> Gradients:
    """-sin x."""
    return (-ctx.dy * ctx.op("Sin", ctx.tensors[0]),)


@gradient("Tan", elementwise=True)
def tan(ctx: Context) -> Gradients:
    """From the output: 1 + y²."""
    return (ctx.dy * (ctx.y * ctx.y + 1),)


@gradient("Asin", elementwise=True)
def asin(ctx: Context) -> Gradients:
    """1 / √(1 - x²)."""
    x = ctx.tensors[0]
    return (ctx.dy / ctx.op("Sqrt", 1 - x * x),)


@gradient("Acos", elementwise=True)
def acos(ctx: Context) -> Gradients:
    """-1 / √(1 - x²)."""
    x = ctx.tensors[0]
    return (-ctx.dy / ctx.op("Sqrt", 1 - x * x),)


@gradient("Atan", elementwise=True)
def atan(ctx: Context) -> Gradients:
    """1 / (1 + x²)."""
    x = ctx.tensors[0]
    return (ctx.dy / (x * x + 1),)


@gradient("Sinh", elementwise=True)
def sinh(ctx: Context) -> Gradients:
    """cosh x."""
    return (ctx.dy * ctx.op("Cosh", ctx.tensors[0]),)


@gradient("Cosh", elementwise=True)
def cosh(ctx: Context) -> Gradients:
    """sinh x."""
    return (ctx.dy * ctx.op("Sinh", ctx.tensors[0]),)


@gradient("Asinh", elementwise=True)
def asinh(ctx: Context) -> Gradients:
    """1 / √(x² + 1)."""
    x = ctx.tensors[0]
    return (ctx.dy / ctx.op("Sqrt", x * x + 1),)


@gradient("Acosh", elementwise=True)
def acosh(ctx: Context) -> Gradients:
    """1 / √(x² - 1)."""
    x = ctx.tensors[0]
    return (ctx.dy / ctx.op("Sqrt", x * x - 1),)


@gradient("Atanh", elementwise=True)
def atanh(ctx: Context) -> Gradients:
    """1 / (1 - x²)."""
    x = ctx.tensors[0]
    return (ctx.dy / (1 - x * x),)
