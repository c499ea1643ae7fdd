"""Gathers and scatters: the gradient of one is the other."""

from __future__ import annotations

import numpy as np

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradients, gradient
from memplan.autodiff.emit.value import Value
from memplan.autodiff.rules.scattering import add_along, add_at, add_slices
from memplan.autodiff.rules.slicing import Span, pad_to
from memplan.errors import ModelError
from memplan.shapes.tensor_type import TensorType


@gradient("Gather", inputs=(0,))
def gather(ctx: Context) -> Gradients:
    """Added where it came from; neighbours that are known are padded with zeros."""
    data, indices = ctx.tensors
    axis = ctx.axis(0, data.rank)
    run = _run(ctx, indices, data.shape[axis])
    if run is not None:
        grad = ctx.dy if indices.rank else ctx.unsqueeze(ctx.dy, [axis])
        return (pad_to(ctx, grad, data, {axis: run}),)
    return (add_slices(ctx, ctx.base(0), indices, ctx.dy, axis),)


def _run(ctx: Context, indices: Value, size: int | str) -> Span | None:
    """What lies before and behind, if the indices are known, ascending and without gaps."""
    known = ctx.constant(indices)
    if known is None or not isinstance(size, int) or known.ndim > 1 or not known.size:
        return None
    first = int(known.reshape(-1)[0]) % size
    if not np.array_equal(known.reshape(-1) % size, np.arange(first, first + known.size)):
        return None
    return Span(ctx.const([first]), ctx.const([size - first - known.size]), 1)


@gradient("GatherElements", inputs=(0,))
def gather_elements(ctx: Context) -> Gradients:
    """Added where it came from."""
    data, indices = ctx.tensors
    return (add_along(ctx, ctx.base(0), indices, ctx.dy, ctx.axis(0, data.rank)),)


@gradient("GatherND", inputs=(0,))
def gather_nd(ctx: Context) -> Gradients:
    """Added where it came from; batch dimensions become indices of their own."""
    indices = ctx.tensors[1]
    batch = ctx.attribute("batch_dims", 0)
    if batch:
        with ctx.in_forward():
            indices = _with_batch(ctx, indices, batch)
    return (add_at(ctx, ctx.base(0), indices, ctx.dy),)


def _with_batch(ctx: Context, indices: Value, batch: int) -> Value:
    lead = list(range(indices.rank - 1))
    one = ctx.const([1])
    sizes = ctx.vector([*(ctx.dims(indices, [k]) for k in lead), one])
    result = TensorType(indices.dtype, (*indices.shape[:-1], 1))
    columns = []
    for axis in range(batch):
        size = ctx.squeeze(ctx.dims(indices, [axis]), [0])
        places = ctx.op("Range", ctx.const(np.asarray(0)), size, ctx.const(np.asarray(1)))
        shaped = ctx.unsqueeze(places, [k for k in range(indices.rank) if k != axis])
        columns.append(ctx.op("Expand", shaped, sizes, result=result))
    return ctx.op("Concat", *columns, indices, axis=-1)


@gradient("ScatterElements")
def scatter_elements(ctx: Context) -> Gradients:
    """What was overwritten gets nothing; the updates get what stands in their place."""
    _, indices, updates = ctx.tensors
    axis = ctx.axis(0, ctx.y.rank)
    adds = _adds(ctx)

    def data() -> Value:
        if adds:
            return ctx.dy
        return ctx.op("ScatterElements", ctx.dy, indices, ctx.full_like(updates), axis=axis)

    return (data, None, lambda: ctx.op("GatherElements", ctx.dy, indices, axis=axis))


@gradient("ScatterND")
def scatter_nd(ctx: Context) -> Gradients:
    """What was overwritten gets nothing; the updates get what stands in their place."""
    _, indices, updates = ctx.tensors
    adds = _adds(ctx)

    def data() -> Value:
        if adds:
            return ctx.dy
        return ctx.op("ScatterND", ctx.dy, indices, ctx.full_like(updates))

    return (data, None, lambda: ctx.op("GatherND", ctx.dy, indices))


def _adds(ctx: Context) -> bool:
    kind = ctx.attribute("reduction", "none")
    if kind not in ("none", "add"):
        raise ModelError(
            f"no gradient is known for {ctx.node.op_type} '{ctx.node.name}' with the reduction "
            f"'{kind}'",
            "use the reduction none or add",
        )
    return kind == "add"


@gradient("TopK", inputs=(0,), outputs=(0,))
def top_k(ctx: Context) -> Gradients:
    """Added where it came from."""
    axis = ctx.axis(-1, ctx.y.rank)
    return (add_along(ctx, ctx.base(0), ctx.output(1), ctx.dy, axis),)
