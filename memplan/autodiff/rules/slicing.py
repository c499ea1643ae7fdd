"""The gradient of a Slice: its pieces back among zeros, with bounds that may be known late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.value import Value
from memplan.shapes.tensor_type import Dim, Shape, TensorType

_HUGE = 2**31 - 1
"""Exporters write the end of an axis as this, or more."""


@dataclass(frozen=True, slots=True)
class Span:
    """What a slice left out of an axis: elements before and behind (int64 vectors of length 1).

    With a step beyond 1 or -1 also what lies between; with a negative one, in reverse order.
    """

    before: Value
    behind: Value
    step: int


def spans_of(ctx: Context, x: Value) -> dict[int, Span]:
    """Per sliced axis of a ``Slice`` node, what it left out of ``x``."""
    starts = ctx.inputs[1]
    assert starts is not None
    count = starts.shape[0]
    axes = ctx.integers(3, "axes")
    if axes is None:
        axes = list(range(count if isinstance(count, int) else x.rank))
    steps = ctx.integers(4, "steps") or [1] * len(axes)
    return {
        axis % x.rank: _span(ctx, x, axis % x.rank, k, step)
        for k, (axis, step) in enumerate(zip(axes, steps, strict=True))
    }


def _span(ctx: Context, x: Value, axis: int, slot: int, step: int) -> Span:
    size, left = x.shape[axis], ctx.y.shape[axis]
    first, last = (_bound(ctx, index, slot) for index in (1, 2))
    if isinstance(size, int) and first is not None:
        begin = _clamped(first, size, step)
        if isinstance(left, int):
            return _static(ctx, begin, left, size, step)
    if step == 1 and first is not None and last is not None and (last < 0 or last >= _HUGE):
        behind = max(-last, 0)
        if first >= 0 and first + behind <= 1:  # more may leave less than nothing of a small size
            return Span(ctx.const([first]), ctx.const([behind]), 1)
    return _at_run_time(ctx, x, axis, slot, step)


def _bound(ctx: Context, index: int, slot: int) -> int | None:
    known = ctx.constant(ctx.input(index))
    return None if known is None else int(known.reshape(-1)[slot])


def _clamped(start: int, size: int, step: int) -> int:
    start = start + size if start < 0 else start
    return min(max(start, 0), size if step > 0 else size - 1)


def _static(ctx: Context, begin: int, count: int, size: int, step: int) -> Span:
    reach = (max(count, 1) - 1) * abs(step)
    before = begin if step > 0 else begin - reach
    return Span(ctx.const([before]), ctx.const([size - before - reach - 1 + (count == 0)]), step)


def _at_run_time(ctx: Context, x: Value, axis: int, slot: int, step: int) -> Span:
    """Where the first or last element stands is found by slicing 0, 1, 2, ... in the same way."""
    size, count = ctx.dims(x, [axis]), ctx.dims(ctx.y, [axis])
    starts = ctx.tensors[1]
    with ctx.in_forward():
        start = ctx.element(starts, slot)
        begin = ctx.op("Where", ctx.op("Less", start, 0), start + size, start)
        top = size if step > 0 else size - 1
        begin = ctx.op("Min", ctx.op("Max", begin, ctx.const([0])), top)
        reach = (count - 1) * abs(step)
        if abs(step) > 1:  # of no element, it ends right before where it would begin
            reach = ctx.op("Max", reach, ctx.const([-1]))
        before = begin if step > 0 else begin - reach
        behind = size - before - reach - 1
    return Span(before, behind, step)


def pad_to(ctx: Context, grad: Value, like: Value, spans: Mapping[int, Span]) -> Value:
    """``grad`` in the shape of ``like``: zeros where ``spans`` left something out."""
    for axis, span in spans.items():
        if span.step < 0:
            grad = ctx.reverse(grad, [axis])
        if abs(span.step) > 1:
            grad = _apart(ctx, grad, axis, abs(span.step))
    zero = [
        all((c := ctx.constant(side)) is not None and not c.any() for side in (s.before, s.behind))
        for s in spans.values()
    ]
    if all(zero):
        return grad
    befores = {axis: span.before for axis, span in spans.items()}
    behinds = {axis: span.behind for axis, span in spans.items()}
    pads = ctx.vector([*_sides(ctx, befores, like.rank), *_sides(ctx, behinds, like.rank)])
    return ctx.op("Pad", grad, pads, result=like.type)


def _sides(ctx: Context, known: Mapping[int, Value], rank: int) -> list[Value]:
    return [known.get(axis, ctx.const([0])) for axis in range(rank)]


def _apart(ctx: Context, grad: Value, axis: int, step: int) -> Value:
    """``step - 1`` zeros between neighbours along an axis."""
    rank = grad.rank
    is_open = grad.type.sizes is None  # there may be no elements
    wide = ctx.unsqueeze(grad, [axis + 1])
    pads = [0] * (2 * (rank + 1))
    pads[rank + 1 + axis + 1] = step - 1
    wide = ctx.op("Pad", wide, ctx.const(pads))
    size = grad.shape[axis]
    merged: Dim = size * step if isinstance(size, int) else ""
    shape: Shape = (*grad.shape[:axis], merged, *grad.shape[axis + 1 :])
    if is_open:
        sizes = [ctx.dims(grad, [k]) for k in range(rank)]
        sizes[axis] = sizes[axis] * step
        result = TensorType(grad.dtype, shape)
        flat = ctx.op("Reshape", wide, ctx.vector(sizes), result=result, allowzero=1)
    else:
        flat = ctx.reshape(wide, shape)
    stop = [-(step - 1)]
    return ctx.slice(flat, [0], stop, [axis])
