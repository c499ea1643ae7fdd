"""Resize, nearest and linear."""

from __future__ import annotations

import math

import numpy as np

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradients, gradient
from memplan.autodiff.emit.value import Array, Value
from memplan.errors import ModelError
from memplan.shapes.tensor_type import Dim, TensorType

_COORDINATES = frozenset({"half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"})
_PROBE = 8
"""Where a size is symbolic, the pattern of repetition is looked at for this many elements."""


@gradient("Resize", inputs=(0,))
def resize(ctx: Context) -> Gradients:
    """Every element of x gets the gradients of what it went into, with the weights that it had.

    Along an axis, resizing is a product with a matrix; its transpose is applied. Where elements
    were only repeated, they are summed.
    """
    _require_supported(ctx)
    x, y = ctx.tensors[0], ctx.y
    scales = _scales(ctx, x, y)
    axes = [axis for axis, scale in enumerate(scales) if scale != 1]
    repeats = {axis: _repeats(ctx, x.shape[axis], scales[axis]) for axis in axes}
    grad = ctx.dy
    for axis in reversed([axis for axis in axes if repeats[axis] is None]):
        grad = _transposed(ctx, grad, axis, _matrix(ctx, axis, scales[axis]))
    blocks = {axis: count for axis, count in repeats.items() if count is not None}
    return (_summed(ctx, grad, blocks) if blocks else grad,)


def _require_supported(ctx: Context) -> None:
    mode = ctx.attribute("mode", "nearest")
    coordinates = ctx.attribute("coordinate_transformation_mode", "half_pixel")
    what = ""
    if mode not in ("nearest", "linear"):
        what = f"mode '{mode}'"
    elif coordinates not in _COORDINATES:
        what = f"coordinate_transformation_mode '{coordinates}'"
    elif ctx.attribute("antialias", 0) and mode != "nearest":
        what = "antialias"
    if what:
        raise ModelError(
            f"no gradient is known for Resize '{ctx.node.name}' with {what}",
            "modes nearest and linear are differentiated, without antialias or cropping",
        )


def _scales(ctx: Context, x: Value, y: Value) -> list[float]:
    """The factor of each axis, as the runtime finds it: 1 where nothing is resized."""
    axes = [axis % x.rank for axis in ctx.attribute("axes", list[int]()) or range(x.rank)]
    factors, sizes = (ctx.constant(ctx.input(slot)) for slot in (2, 3))
    found: list[float] = []
    for slot, axis in enumerate(axes):
        before, after = x.shape[axis], y.shape[axis]
        if factors is not None and factors.size:
            found.append(float(factors[slot]))
        elif isinstance(before, int) and isinstance(after, int):
            found.append((int(sizes[slot]) if sizes is not None else after) / before)
        elif before == after:
            found.append(1.0)
        else:
            raise ctx.needs("constant scales or static shapes")
    policy = ctx.attribute("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch" and sizes is None and factors is None:
        raise ctx.needs("constant sizes, as it keeps the aspect ratio")
    if policy != "stretch" and not (factors is not None and factors.size):
        found = [max(found) if policy == "not_smaller" else min(found)] * len(found)
    result = [1.0] * x.rank
    for axis, factor in zip(axes, found, strict=True):
        result[axis] = factor
    return result


def _repeats(ctx: Context, size: Dim, scale: float) -> int | None:
    """How often every element of an axis is repeated in a row, if nothing else is done to it."""
    if not math.isfinite(scale) or scale <= 0:
        return None
    times = round(scale)
    if ctx.attribute("mode", "nearest") != "nearest" or times != scale:
        return None
    count = size if isinstance(size, int) else _PROBE
    ctx.require_room(count, times)
    found = _nearest(ctx, count, count * times, scale)
    return times if (found == np.arange(count * times) // times).all() else None


def _matrix(ctx: Context, axis: int, scale: float) -> Array:
    """Elements after × elements before."""
    before, after = ctx.tensors[0].shape[axis], ctx.y.shape[axis]
    if not isinstance(before, int) or not isinstance(after, int):
        raise ctx.needs("static shapes")
    ctx.require_room(after, before)
    result, rows = np.zeros((after, before)), np.arange(after)
    if ctx.attribute("mode", "nearest") == "nearest":
        result[rows, _nearest(ctx, before, after, scale)] = 1
        return result
    places = np.clip(_coordinates(ctx, before, after, scale), 0, before - 1).astype(np.float64)
    low = np.floor(places).astype(np.int64)
    np.add.at(result, (rows, low), 1 - (places - low))
    np.add.at(result, (rows, np.minimum(low + 1, before - 1)), places - low)
    return result


def _nearest(ctx: Context, before: int, after: int, scale: float) -> Array:
    """Which element every element after resizing is."""
    places = _coordinates(ctx, before, after, scale)
    mode = ctx.attribute("nearest_mode", "round_prefer_floor")
    if mode in ("floor", "ceil"):
        found = np.floor(places) if mode == "floor" else np.ceil(places)
    elif mode == "round_prefer_ceil":
        found = np.floor(places + np.float32(0.5))
    else:
        found = np.ceil(places - np.float32(0.5))
    return np.clip(found, 0, before - 1).astype(np.int64)


def _coordinates(ctx: Context, before: int, after: int, scale: float) -> Array:
    """Where elements after resizing lie among those before; in float32, as runtimes compute it."""
    mode = ctx.attribute("coordinate_transformation_mode", "half_pixel")
    numbers, factor, half = np.arange(after, dtype=np.float32), np.float32(scale), np.float32(0.5)
    if mode == "align_corners":
        return numbers * np.float32(before - 1) / np.float32(max(after - 1, 1))
    if mode == "asymmetric":
        return numbers / factor
    if mode == "pytorch_half_pixel" and after == 1:
        return np.zeros(1, np.float32)
    return (numbers + half) / factor - half


def _transposed(ctx: Context, grad: Value, axis: int, matrix: Array) -> Value:
    """The product with a matrix along an axis."""
    weights = ctx.const(matrix, grad.dtype)
    shape = (*grad.shape[:axis], matrix.shape[1], *grad.shape[axis + 1 :])
    if axis == grad.rank - 1:
        return ctx.op("MatMul", grad, weights, result=TensorType(grad.dtype, shape))
    behind = grad.shape[axis + 1 :]
    sizes = [dim for dim in behind if isinstance(dim, int)]
    flat: Dim = math.prod(sizes) if len(sizes) == len(behind) else ""
    whole = grad
    if len(behind) > 1:
        inner = TensorType(grad.dtype, (*grad.shape[: axis + 1], flat))
        target = ctx.const([0] * (axis + 1) + [-1])
        whole = ctx.op("Reshape", grad, target, result=inner)
    turned = ctx.const(matrix.transpose(), grad.dtype)
    result = TensorType(grad.dtype, (*whole.shape[:axis], matrix.shape[1], whole.shape[-1]))
    product = ctx.op("MatMul", turned, whole, result=result)
    if len(behind) == 1:
        return product
    ends = ctx.vector(
        [ctx.const([0] * (axis + 1)), *(ctx.dims(grad, [k]) for k in range(axis + 1, grad.rank))]
    )
    return ctx.op("Reshape", product, ends, result=TensorType(grad.dtype, shape))


def _summed(ctx: Context, grad: Value, blocks: dict[int, int]) -> Value:
    """Sums over blocks of repeated elements along some axes."""
    x = ctx.tensors[0]
    shape: list[Dim] = []
    pieces: list[Value] = []
    axes = []
    for axis, size in enumerate(x.shape):
        shape.append(size)
        pieces.append(ctx.dims(x, [axis]))
        if axis in blocks:
            axes.append(len(shape))
            shape.append(blocks[axis])
            pieces.append(ctx.const([blocks[axis]]))
    apart = TensorType(grad.dtype, tuple(shape))
    whole = ctx.op("Reshape", grad, ctx.vector(pieces), result=apart)
    return ctx.sum(whole, axes, keepdims=False)
