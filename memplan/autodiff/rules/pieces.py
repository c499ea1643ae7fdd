"""Operators that join, cut and repeat."""

from __future__ import annotations

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradient, Gradients, gradient
from memplan.autodiff.emit.value import Value
from memplan.autodiff.rules.slicing import Span, pad_to, spans_of
from memplan.shapes.tensor_type import TensorType


@gradient("Expand", elementwise=True, inputs=(0,))
def expand(ctx: Context) -> Gradients:
    """Summed over what was repeated, by the builder."""
    return (ctx.dy,)


@gradient("Tile", inputs=(0,))
def tile(ctx: Context) -> Gradients:
    """Repetitions become axes of their own, which are summed over."""
    x, repeats = ctx.tensors
    known = ctx.constant(repeats)
    if known is not None and (sizes := x.type.sizes) is not None:
        pairs = [n for pair in zip(known.tolist(), sizes, strict=True) for n in pair]
        shape: Value = ctx.const(pairs)
    else:
        columns = [ctx.unsqueeze(v, [1]) for v in (repeats, ctx.shape_of(x))]
        shape = ctx.op("Reshape", ctx.op("Concat", *columns, axis=1), ctx.const([-1]))
    inner: tuple[int | str, ...] = tuple(n for dim in x.shape for n in ("", dim))
    # Of what may be empty, a 0 is a size of its own, not that of another dimension.
    empty = not all(isinstance(size, int) and size > 0 for size in x.shape)
    zero = {"allowzero": 1} if empty else {}
    apart = ctx.op("Reshape", ctx.dy, shape, result=TensorType(ctx.dy.dtype, inner), **zero)
    return (ctx.reshape_like(ctx.sum(apart, range(0, 2 * x.rank, 2), keepdims=False), x),)


@gradient("Concat")
def concat(ctx: Context) -> Gradients:
    """Split again; a single piece is cut out."""
    axis = ctx.axis(0, ctx.y.rank)
    if all(ctx.wanted) and len(ctx.tensors) > 1:
        return _split(ctx, axis)
    return [_piece(ctx, axis, slot) for slot in range(len(ctx.tensors))]


def _split(ctx: Context, axis: int) -> Gradients:
    values = ctx.tensors
    sizes = [ctx.dims(value, [axis]) for value in values]
    parts = ctx.vector(sizes)
    results = tuple(TensorType(value.dtype, value.shape) for value in values)
    return ctx.ops("Split", ctx.dy, parts, outputs=len(values), results=results, axis=axis)


def _piece(ctx: Context, axis: int, slot: int) -> Gradient:
    value = ctx.tensors[slot]

    def build() -> Value:
        before = [ctx.dims(other, [axis]) for other in ctx.tensors[:slot]]
        start = ctx.const([0])
        for size in before:
            start = start + size
        end = start + ctx.dims(value, [axis])
        return ctx.slice(ctx.dy, start, end, [axis], result=value.type)

    return build


@gradient("Split", inputs=(0,))
def split(ctx: Context) -> Gradients:
    """Joined again, zeros where no gradient flows in."""
    axis = ctx.axis(0, ctx.tensors[0].rank)
    grads = [grad for grad in ctx.grads if grad is not None]
    if len(grads) == 1:  # cheaper than joining it with zeros
        slot = next(k for k, grad in enumerate(ctx.grads) if grad is not None)
        return (_padded_piece(ctx, axis, slot, grads[0]),)
    parts = [
        grad if grad is not None else ctx.full_like(ctx.output(k))
        for k, grad in enumerate(ctx.grads)
    ]
    return (ctx.op("Concat", *parts, axis=axis, result=ctx.tensors[0].type),)


def _padded_piece(ctx: Context, axis: int, slot: int, grad: Value) -> Value:
    begin, end = ctx.const([0]), ctx.const([0])
    for other in range(len(ctx.outputs)):
        size = ctx.dims(ctx.output(other), [axis]) if other != slot else None
        if size is not None and other < slot:
            begin = begin + size
        elif size is not None:
            end = end + size
    return pad_to(ctx, grad, ctx.tensors[0], {axis: Span(begin, end, 1)})


@gradient("Slice", inputs=(0,))
def cut(ctx: Context) -> Gradients:
    """Put back among zeros."""
    x = ctx.tensors[0]
    return (pad_to(ctx, ctx.dy, x, spans_of(ctx, x)),)


@gradient("Trilu", inputs=(0,))
def triangle(ctx: Context) -> Gradients:
    """The same triangle."""
    return (ctx.op("Trilu", ctx.dy, ctx.input(1), upper=ctx.attribute("upper", 1)),)


@gradient("ReverseSequence", inputs=(0,))
def reverse_sequence(ctx: Context) -> Gradients:
    """The same again."""
    batch, time = ctx.attribute("batch_axis", 1), ctx.attribute("time_axis", 0)
    lengths = ctx.inputs[1]
    return (ctx.op("ReverseSequence", ctx.dy, lengths, batch_axis=batch, time_axis=time),)
