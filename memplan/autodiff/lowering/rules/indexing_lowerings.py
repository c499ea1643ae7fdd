"""Gradients of gathers, slices and embeddings."""

from __future__ import annotations

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.value import Value
from memplan.autodiff.lowering.gradient_lowerings import Forward, gradients, source
from memplan.autodiff.lowering.lowering_registry import Results, lowering
from memplan.errors import ModelError


@lowering("GatherGrad", "GatherNDGrad", "GatherElementsGrad", inputs=3)
def gather_grad(ctx: Context) -> Results:
    """(shape, indices, dY), or (dY, shape, indices) of elements: added where it came from."""
    op = ctx.node.op_type.removesuffix("Grad")
    order = (1, 2, 0) if op == "GatherElements" else (0, 1, 2)
    shape, indices, dy = (ctx.tensors[slot] for slot in order)
    return gradients(ctx, Forward(op, dy, [source(ctx, shape), indices], [dy]))


@lowering("SliceGrad", inputs=4)
def slice_grad(ctx: Context) -> Results:
    """(dY, shape, starts, ends, axes, steps): put back among zeros."""
    dy, shape = ctx.tensors[:2]
    bounds = [ctx.input(slot) for slot in range(2, 6)]
    while bounds[-1] is None:
        bounds.pop()
    return gradients(ctx, Forward("Slice", dy, [source(ctx, shape), *bounds], [dy]))


@lowering("ShrunkenGather", inputs=2)
def shrunken_gather(ctx: Context) -> Results:
    """A Gather that gives less than it takes."""
    data, indices = ctx.tensors[:2]
    return [ctx.op("Gather", data, indices, axis=ctx.attribute("axis", 0))]


# -- embeddings of PyTorch ---------------------------------------------------------------------


@lowering("aten::embedding", inputs=2)
def embedding(ctx: Context) -> Results:
    """(weight, indices, ...): rows of the weight."""
    weight, indices = ctx.tensors[:2]
    return [ctx.op("Gather", weight, indices)]


@lowering("aten::embedding_backward", inputs=3)
def embedding_backward(ctx: Context) -> Results:
    """(dY, indices, rows, padding index, scale by frequency, sparse): added to the rows, those of
    the padding left out."""
    dy, indices, rows = ctx.tensors[:3]
    scaled = ctx.constant(ctx.input(4))
    if ctx.input(4) is not None and (scaled is None or scaled.any()):
        raise ModelError(
            f"embedding_backward '{ctx.node.name}' scales gradients by frequency",
            "train with scale_grad_by_freq=False",
        )
    padding = ctx.input(3)
    dy = dy if padding is None else _without_padding(ctx, dy, indices, padding)
    weight = _weight(ctx, rows)
    return gradients(ctx, Forward("Gather", dy, [weight, indices], [dy]))


def _without_padding(ctx: Context, dy: Value, indices: Value, padding: Value) -> Value:
    """Zeros for the padding; PyTorch's sign of none is -1."""
    known = ctx.constant(padding)
    if known is not None and int(known.item()) < 0:
        return dy
    hits = ctx.op("Equal", indices, ctx.cast(padding, indices.dtype))
    return ctx.op("Where", ctx.unsqueeze(hits, [dy.rank - 1]), ctx.const(0, dy.dtype), dy)


def _weight(ctx: Context, rows: Value) -> Value:
    """The table: by its gradient's name, or as that of which the number of rows is taken."""
    made = ctx.maker(rows)
    picked = ctx.maker(ctx.tensor(made.input[0])) if made is not None else None
    if made is not None and made.op_type == "Gather" and picked is not None:
        return source(ctx, ctx.tensor(made.input[0]))
    return source(ctx, None)
