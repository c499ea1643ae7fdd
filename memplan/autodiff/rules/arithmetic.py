"""Elementwise arithmetic. Broadcasting is undone by the builder."""

from __future__ import annotations

import numpy as np

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradients, gradient, no_gradient
from memplan.autodiff.emit.value import Value

no_gradient("Sign", "Floor", "Ceil", "Round")
no_gradient("EyeLike", "RandomNormalLike", "RandomUniformLike")  # they read a shape only


@gradient("Identity", "Sum", elementwise=True)
def same(ctx: Context) -> Gradients:
    """Every input's gradient is that of the output."""
    return [ctx.dy for _ in ctx.inputs]


@gradient("Cast", elementwise=True)
def cast(ctx: Context) -> Gradients:
    """Back to the input's element type."""
    return (ctx.cast(ctx.dy, ctx.tensors[0].dtype),)


@gradient("Add", elementwise=True)
def add(ctx: Context) -> Gradients:
    """a + b."""
    return (ctx.dy, ctx.dy)


@gradient("Sub", elementwise=True)
def sub(ctx: Context) -> Gradients:
    """a - b."""
    return (ctx.dy, lambda: -ctx.dy)


@gradient("Mul", elementwise=True)
def mul(ctx: Context) -> Gradients:
    """a · b; each side reads the other only."""
    a, b = ctx.tensors
    if a == b:
        return (lambda: ctx.dy * 2 * a,)
    return (lambda: ctx.dy * b, lambda: ctx.dy * a)


@gradient("Div", elementwise=True)
def div(ctx: Context) -> Gradients:
    """y = a / b: dy / b and -dy·y / b. A constant a is read instead of y."""
    a, b = ctx.tensors

    def below() -> Value:
        if ctx.constant(a) is not None:
            return -(ctx.dy * a) / (b * b)
        return -(ctx.dy * ctx.y) / b

    return (lambda: ctx.dy / b, below)


@gradient("Mean", elementwise=True)
def mean(ctx: Context) -> Gradients:
    """The mean of the inputs."""
    grad = ctx.dy * (1 / len(ctx.inputs))
    return [grad for _ in ctx.inputs]


@gradient("Pow", elementwise=True)
def power(ctx: Context) -> Gradients:
    """y = x^e: e·x^(e-1) and y·ln x; where x is 0 the latter is 0."""
    x, e = ctx.tensors
    known = ctx.constant(e)
    exponent = float(known.item()) if known is not None and known.size == 1 else None

    def base() -> Value | None:
        if exponent is not None:
            return _power_by_number(ctx, x, exponent)
        n = ctx.cast(e, x.dtype)
        grad = ctx.dy * n * ctx.op("Pow", x, n - 1)
        return ctx.op("Where", ctx.op("Equal", n, 0), 0, grad)

    def exponent_grad() -> Value:
        zero = ctx.op("Equal", x, 0)
        return ctx.dy * ctx.op("Where", zero, 0, ctx.y * ctx.op("Log", x))

    return (base, exponent_grad)


def _power_by_number(ctx: Context, x: Value, exponent: float) -> Value | None:
    if exponent == 0:
        return None
    if exponent == 1:
        return ctx.dy
    if exponent == 2:
        return ctx.dy * 2 * x
    if exponent == 3:
        return ctx.dy * 3 * (x * x)
    if exponent == 0.5:
        return ctx.dy * 0.5 / ctx.y
    if exponent == -1:
        return -ctx.dy * ctx.y * ctx.y
    return ctx.dy * exponent * ctx.op("Pow", x, exponent - 1)


@gradient("Max", "Min", elementwise=True)
def extreme(ctx: Context) -> Gradients:
    """To the inputs that have the extreme value, evenly."""
    values = ctx.tensors
    if len(values) == 1:
        return (ctx.dy,)
    if len(values) > 2:
        hits = [ctx.cast(ctx.op("Equal", value, ctx.y), ctx.dy.dtype) for value in values]
        share = ctx.dy / ctx.op("Sum", *hits)
        return [hit * share for hit in hits]
    beyond = ("Less", "Greater") if ctx.node.op_type == "Max" else ("Greater", "Less")

    def part(loses: str) -> Value:
        shared = ctx.op("Where", ctx.op("Equal", *values), ctx.dy * 0.5, ctx.dy)
        return ctx.op("Where", ctx.op(loses, *values), 0, shared)

    return (lambda: part(beyond[0]), lambda: part(beyond[1]))


@gradient("Where", elementwise=True)
def where(ctx: Context) -> Gradients:
    """To the side that was chosen; reads the condition only.

    What a softmax makes of -∞ is 0, and so is its gradient: nothing is left to choose, where no
    row is -∞ as a whole.
    """
    condition = ctx.tensors[0]
    if _hidden_from_softmax(ctx):
        return (None, ctx.dy)
    return (
        None,
        lambda: ctx.op("Where", condition, ctx.dy, 0),
        lambda: ctx.op("Where", condition, 0, ctx.dy),
    )


def _hidden_from_softmax(ctx: Context) -> bool:
    """Whether this is -∞ in place of some scores, and only a softmax reads it, which gives every
    row some weight."""
    condition, scores, instead = ctx.tensors
    number = ctx.constant(instead)
    if number is None or not np.all(np.isneginf(number)) or scores.shape != ctx.y.shape:
        return False
    made = ctx.maker(ctx.dy)
    weights = None if made is None else ctx.maker(ctx.tensor(made.input[0]))
    if weights is None or weights.op_type != "Softmax" or weights.input[0] != ctx.y.name:
        return False
    axis = next((item.i for item in weights.attribute if item.name == "axis"), -1)
    return axis in (-1, ctx.y.rank - 1) and _every_row_has_one(ctx, condition)


def _every_row_has_one(ctx: Context, condition: Value) -> bool:
    """Whether each row of a condition is true somewhere: it is known, or a lower triangle of
    True."""
    known, made = ctx.constant(condition), ctx.maker(condition)
    if known is not None:
        return bool(known.ndim and known.any(axis=-1).all())
    if made is None or made.op_type != "Trilu":
        return False
    upper = next((item.i for item in made.attribute if item.name == "upper"), 1)
    offset = ctx.constant(ctx.tensor(made.input[1])) if len(made.input) > 1 else np.asarray(0)
    filled = ctx.maker(ctx.tensor(made.input[0]))
    content = None if filled is None else ctx.constant(ctx.tensor(filled.input[0]))
    if filled is None or filled.op_type != "Expand" or content is None or not content.all():
        return False
    return not upper and offset is not None and offset.item() >= 0


@gradient("Clip", elementwise=True)
def clip(ctx: Context) -> Gradients:
    """From the output: what lies strictly between the bounds was not clipped."""
    low, high = ctx.input(1), ctx.input(2)

    def inside() -> Value:
        tests = [("Greater", low), ("Less", high)]
        masks = [ctx.op(op, ctx.y, bound) for op, bound in tests if bound is not None]
        if not masks:
            return ctx.dy
        mask = masks[0] if len(masks) == 1 else ctx.op("And", *masks)
        return ctx.op("Where", mask, ctx.dy, 0)

    def lower() -> Value:
        mask = ctx.op("LessOrEqual", ctx.y, low)
        if high is not None:  # bounds the wrong way round give the upper one
            mask = ctx.op("And", mask, ctx.op("Less", ctx.y, high))
        return ctx.op("Where", mask, ctx.dy, 0)

    return (
        inside,
        lower,
        lambda: ctx.op("Where", ctx.op("GreaterOrEqual", ctx.y, high), ctx.dy, 0),
    )


@gradient("Dropout", elementwise=True, inputs=(0,), outputs=(0,))
def dropout(ctx: Context) -> Gradients:
    """From the mask; in inference mode the identity."""
    ratio, training = ctx.input(1), ctx.input(2)
    known_mode, known_ratio = ctx.constant(training), ctx.constant(ratio)
    if training is None or (known_mode is not None and not known_mode.item()):
        return (ctx.dy,)
    kept = ctx.op("Where", ctx.output(1), ctx.dy, 0)
    if ratio is None or known_ratio is not None:
        number = 0.5 if known_ratio is None else float(known_ratio.item())
        if number >= 1:
            return (None,)
        scale: Value = ctx.const(1 / (1 - number), ctx.dy.dtype)
    else:
        scale = 1 / (1 - ctx.cast(ratio, ctx.dy.dtype))
    if known_mode is None:
        scale = ctx.op("Where", training, scale, 1)
    return (kept * scale,)
