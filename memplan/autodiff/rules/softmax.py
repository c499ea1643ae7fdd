"""Softmax and its logarithm, and the losses made of it."""

from __future__ import annotations

from collections.abc import Sequence

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradients, expansion, gradient, no_gradient
from memplan.autodiff.emit.value import Value
from memplan.autodiff.rules.scattering import add_along, source_of

no_gradient("Hardmax")


@gradient("Softmax")
def softmax(ctx: Context) -> Gradients:
    """From the output: y·(dy - Σ dy·y)."""
    along = ctx.sum(ctx.dy * ctx.y, [ctx.axis(-1, ctx.y.rank)])
    return (ctx.y * (ctx.dy - along),)


@gradient("LogSoftmax")
def log_softmax(ctx: Context) -> Gradients:
    """From the output: dy - eʸ·Σ dy.

    Where dy is a scatter of few numbers (labels picked by GatherElements), they are scattered into
    the second term, and dy itself is never built.
    """
    axis = ctx.axis(-1, ctx.y.rank)
    picked = _scattered(ctx, axis)
    if picked is None:
        return (ctx.dy - ctx.op("Exp", ctx.y) * ctx.sum(ctx.dy, [axis]),)
    indices, numbers = picked
    total = -ctx.sum(numbers, [axis])
    rest = ctx.op("Exp", ctx.y) * total
    return (add_along(ctx, rest, indices, numbers, axis),)


def _scattered(ctx: Context, axis: int) -> tuple[Value, Value] | None:
    """Indices and numbers, if dy is a ScatterElements of them into zeros along ``axis``.

    Narrow types are scattered in float32, between Casts.
    """
    scatter = ctx.maker(source_of(ctx, ctx.dy))
    if scatter is None or scatter.op_type != "ScatterElements":
        return None
    attributes = {item.name: item for item in scatter.attribute}
    zeros, indices, numbers = (ctx.emitter.tensor(name) for name in scatter.input)
    filled = ctx.maker(zeros)
    if "reduction" not in attributes or attributes["axis"].i != axis or filled is None:
        return None
    content = ctx.constant(ctx.emitter.tensor(filled.input[0]))
    if filled.op_type != "Expand" or content is None or content.any():
        return None
    if numbers.dtype != ctx.dy.dtype:
        numbers = ctx.cast(source_of(ctx, numbers), ctx.dy.dtype)
    return indices, numbers


@expansion("NegativeLogLikelihoodLoss")
def negative_log_likelihood(ctx: Context) -> Sequence[Value | None]:
    """Pick, weight, reduce."""
    return [_likelihood(ctx, ctx.tensors[0])]


@expansion("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(ctx: Context) -> Sequence[Value | None]:
    """LogSoftmax and the above; its second output are the logarithms."""
    logs = ctx.op("LogSoftmax", ctx.tensors[0], axis=1)
    return [_likelihood(ctx, logs), logs]


def _likelihood(ctx: Context, logs: Value) -> Value:
    """The loss of log probabilities of shape N × C × ... for labels of shape N × ..."""
    labels, weights = ctx.tensors[1], ctx.input(2)
    valid = None
    if ctx.has_attribute("ignore_index"):
        ignored = ctx.const(ctx.attribute("ignore_index", 0), labels.dtype)
        valid = ctx.op("Not", ctx.op("Equal", labels, ignored))
        labels = ctx.op("Where", valid, labels, ctx.const(0, labels.dtype))
    picked = ctx.op("GatherElements", logs, ctx.unsqueeze(labels, [1]), axis=1)
    losses = -ctx.squeeze(picked, [1])
    share: Value | None = None
    if weights is not None:
        share = ctx.op("Gather", weights, labels)
    if valid is not None:
        one = ctx.const(1, logs.dtype)
        share = ctx.op("Where", valid, share if share is not None else one, 0)
    if share is not None:
        losses = losses * share
    return _reduced(ctx, losses, share)


def _reduced(ctx: Context, losses: Value, share: Value | None) -> Value:
    kind = ctx.attribute("reduction", "mean")
    axes = range(losses.rank)
    if kind == "none":
        return losses
    if kind == "mean" and share is None:
        return ctx.reduce("ReduceMean", losses, axes, keepdims=False)
    total = ctx.sum(losses, axes, keepdims=False)
    if kind == "sum" or share is None:
        return total
    return total / ctx.sum(share, axes, keepdims=False)
