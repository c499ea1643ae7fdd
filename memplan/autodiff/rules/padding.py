"""Pad, in every mode."""

from __future__ import annotations

import numpy as np

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradients, gradient
from memplan.autodiff.emit.value import Array, Value
from memplan.autodiff.rules.scattering import add_along

_MODES = ("reflect", "edge", "wrap")


@gradient("Pad", inputs=(0, 2))
def pad(ctx: Context) -> Gradients:
    """Cut off what was padded, or, where copies were put there, add them to their originals."""
    x = ctx.tensors[0]
    axes = [axis % x.rank for axis in ctx.integers(3, "axes") or range(x.rank)]
    mode = ctx.attribute("mode", "constant")
    if mode != "constant":
        return (_unfold(ctx, x, axes, mode),)

    def value() -> Value:
        rest = ctx.sum(ctx.dy, range(x.rank), keepdims=False)
        kept = ctx.sum(_cut(ctx, x, axes), range(x.rank), keepdims=False)
        target = ctx.inputs[2]
        assert target is not None
        return ctx.reshape_like(rest - kept, target)

    return (lambda: _cut(ctx, x, axes), None, value)


def _cut(ctx: Context, x: Value, axes: list[int]) -> Value:
    pads = ctx.inputs[1]
    assert pads is not None
    known = ctx.constant(pads)
    count = len(axes)
    if known is None:
        with ctx.in_forward():
            begins = ctx.slice(pads, [0], [count], [0])
            stops = begins + ctx.dims(x, axes)
        return ctx.slice(ctx.dy, begins, stops, axes, result=x.type)
    before = [int(n) for n in known[:count]]
    behind = [int(n) for n in known[count:]]
    grad = ctx.dy
    cut = [k for k in range(count) if before[k] > 0 or behind[k] > 0]
    if cut:
        starts = [max(before[k], 0) for k in cut]
        ends = [-behind[k] if behind[k] > 0 else 2**31 - 1 for k in cut]
        grad = ctx.slice(grad, starts, ends, [axes[k] for k in cut])
    if min(before + behind, default=0) < 0:  # what a negative pad cut off comes back as zeros
        sides = np.zeros((2, x.rank), dtype=np.int64)
        sides[0, axes] = np.maximum(-np.asarray(before), 0)
        sides[1, axes] = np.maximum(-np.asarray(behind), 0)
        grad = ctx.op("Pad", grad, ctx.const(sides.reshape(-1)), result=x.type)
    return grad


def _unfold(ctx: Context, x: Value, axes: list[int], mode: str) -> Value:
    """Axis by axis, in reverse: every element is added to the one that it is a copy of."""
    known, sizes = ctx.constant(ctx.input(1)), x.type.sizes
    if known is None or sizes is None or mode not in _MODES:
        raise ctx.needs(f"static shapes in mode '{mode}'")
    grad = ctx.dy
    for k in reversed(range(len(axes))):
        axis, before, behind = axes[k], int(known[k]), int(known[len(axes) + k])
        if before == behind == 0:
            continue
        places = _copied(sizes[axis], before, behind, mode)
        shape = [dim if isinstance(dim, int) else 0 for dim in grad.shape]
        column = places.reshape([-1] + [1] * (x.rank - axis - 1))
        indices = ctx.op("Expand", ctx.const(column), ctx.const(shape))
        shape[axis] = sizes[axis]
        zeros = ctx.op("Expand", ctx.const(0, grad.dtype), ctx.const(shape))
        grad = add_along(ctx, zeros, indices, grad, axis)
    return grad


def _copied(size: int, before: int, behind: int, mode: str) -> Array:
    """Which element of an axis stands at each place after padding."""
    first, last = max(before, 0), max(behind, 0)
    places = np.pad(np.arange(size), (first, last), mode=mode)  # type: ignore[call-overload]
    begin, end = max(-before, 0), len(places) - max(-behind, 0)
    found: Array = places[begin:end]
    return found
