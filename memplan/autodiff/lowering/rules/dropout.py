"""Dropout, whose mask the forward part saves."""

from __future__ import annotations

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.value import Value
from memplan.autodiff.lowering.lowering_registry import Results, lowering

_RATIO = 0.5


@lowering("DropoutGrad", inputs=2)
def dropout_grad(ctx: Context) -> Results:
    """dy/(1 - ratio) where the mask kept the element; dy itself outside of training mode."""
    dy, mask = ctx.tensors[:2]
    ratio, training = ctx.input(2), ctx.input(3)
    known = ctx.constant(training)
    if known is not None and not known.any():
        return [dy]
    kept = ctx.op("Where", mask, dy / _share(ctx, ratio, dy), ctx.const(0, dy.dtype))
    if training is None or known is not None:
        return [kept]
    return [ctx.op("Where", ctx.squeeze(training, range(training.rank)), kept, dy)]


def _share(ctx: Context, ratio: Value | None, like: Value) -> Value:
    """How many of the elements are kept."""
    if ratio is None:
        return ctx.const(1 - _RATIO, like.dtype)
    known = ctx.constant(ratio)
    if known is not None:
        return ctx.const(1 - float(known.item()), like.dtype)
    return 1 - ctx.cast(ctx.squeeze(ratio, range(ratio.rank)), like.dtype)


@lowering("BiasDropout", inputs=2)
def bias_dropout(ctx: Context) -> Results:
    """Dropout of a sum, plus a residual if there is one; the second output is the mask."""
    data, bias = ctx.tensors[:2]
    given = [data + bias, ctx.input(3), ctx.input(4)]
    while given[-1] is None:
        given.pop()
    seed = ctx.attribute("seed", 0) if ctx.has_attribute("seed") else None
    dropped, mask = ctx.ops("Dropout", *given, outputs=2, seed=seed)
    residual = ctx.input(2)
    return [dropped if residual is None else dropped + residual, mask]
