"""Pools of ATen in one to three dimensions, in terms of operators that ONNX has.

Adaptive averages are products with the matrices that average, one per axis. Where rounding up makes
a further window, ONNX and its exporter have another idea of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from memplan.pytorch.surrogate_exports import backward_through

aten = torch.ops.aten
Sizes = Sequence[int]


def each(values: int | Sizes, rank: int) -> list[int]:
    """One value per dimension."""
    listed = [values] if isinstance(values, int) else list(values)
    return listed * rank if len(listed) == 1 else listed


def along(x: Tensor, axis: int, matrix: Tensor) -> Tensor:
    """The product of a matrix with all that lies along one axis."""
    if axis % x.dim() == x.dim() - 1:
        return x @ matrix
    return (x.transpose(axis, -1) @ matrix).transpose(axis, -1)


def adaptive_max_pool(x: Tensor, output_size: Sizes) -> Any:
    """The largest of each bin, and its place in the plane: bins of different sizes are padded with
    what is less than everything."""
    rank = len(output_size)
    sizes, lead = list(x.shape[-rank:]), list(x.shape[:-rank])
    if all(size % count == 0 for size, count in zip(sizes, output_size, strict=True)):
        window = [size // count for size, count in zip(sizes, output_size, strict=True)]
        pool = aten.max_pool2d_with_indices if rank == 2 else aten.max_pool3d_with_indices
        return pool(x, window, window)
    places: Any = torch.zeros([1] * 2 * rank, dtype=torch.int64, device=x.device)
    inside: Any = torch.ones([1] * 2 * rank, dtype=torch.bool, device=x.device)
    for d, (size, count) in enumerate(zip(sizes, output_size, strict=True)):
        place, valid = _windows(size, count, x.device)
        shape = [1] * 2 * rank
        shape[d], shape[rank + d] = place.shape
        places = places * size + place.reshape(shape)
        inside = inside & valid.reshape(shape)
    flat = x.reshape([*lead, math.prod(sizes)])
    bins = [*output_size, -1]
    places, inside = places.reshape(bins), inside.expand(places.shape).reshape(bins)
    found = flat.index_select(-1, places.reshape(-1)).reshape([*lead, *places.shape])
    found = torch.where(inside, found, -math.inf)
    nearest = found.argmax(-1, keepdim=True)
    index = places.expand(found.shape).gather(-1, nearest).squeeze(-1)
    # The gradient goes to the first of equals; the value is NaN where there is one.
    return backward_through(found.amax(-1), found.gather(-1, nearest).squeeze(-1)), index


def _windows(size: int, count: int, device: Any) -> tuple[Tensor, Tensor]:
    """count × longest: the pixels of each bin on an axis, and whether they are of the bin."""
    begins = [k * size // count for k in range(count)]
    ends = [-((k + 1) * size // -count) for k in range(count)]
    longest = max(end - begin for begin, end in zip(begins, ends, strict=True))
    offset = torch.arange(longest, dtype=torch.int64, device=device)[None, :]
    begin, end = _edges(size, count, device)
    return (begin + offset).clamp(max=size - 1), begin + offset < end


def average_pool(
    operator: Any,
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: int | Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """``avg_pool1d`` and its like. The exporter leaves the divisor away, and ONNX counts windows
    that begin beyond the image: these cases are a sum, divided."""
    rank = RANKS[operator]
    kernel, padding = each(kernel_size, rank), each(padding, rank)
    stride = each(stride, rank) if stride else kernel
    windows = list(zip(x.shape[-rank:], kernel, stride, padding, strict=True))
    if divisor_override is None and not (ceil_mode and any(map(_has_one_behind, windows))):
        return NotImplemented
    around = _around(windows, ceil_mode)
    total = operator(functional.pad(x, around), kernel, stride) * math.prod(kernel)
    if divisor_override is not None:
        return total / divisor_override
    shares = torch.ones([], dtype=x.dtype, device=x.device)
    for window in windows:
        count = _count(*window, ceil_mode)
        shares = shares.unsqueeze(-1) * _pixels(count, window, count_include_pad, x)
    return total / shares


def max_pool(
    operator: Any,
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: int | Sizes = 0,
    dilation: int | Sizes = 1,
    ceil_mode: bool = False,
) -> Any:
    """``torch.max_pool1d`` and its like, where rounding up makes a further window."""
    rank = RANKS[operator]
    kernel, padding, apart = (each(v, rank) for v in (kernel_size, padding, dilation))
    stride = each(stride, rank) if stride else kernel
    extents = [step * (size - 1) + 1 for size, step in zip(kernel, apart, strict=True)]
    windows = list(zip(x.shape[-rank:], extents, stride, padding, strict=True))
    if not (ceil_mode and any(map(_has_one_behind, windows))):
        return NotImplemented
    padded = functional.pad(x, _around(windows, ceil_mode), value=-math.inf)
    return operator(padded, kernel, stride, 0, apart)


def _around(windows: Sequence[Sizes], ceil_mode: bool) -> list[int]:
    """How much is put around an image, last axis first, so that every window lies in it."""
    found: list[int] = []
    for size, extent, step, pad in reversed(windows):
        count = _count(size, extent, step, pad, ceil_mode)
        found += [pad, pad + max(0, (count - 1) * step + extent - size - 2 * pad)]
    return found


def _has_one_behind(window: Sizes) -> bool:
    """Whether rounding up alone would let a window of an axis begin behind the image."""
    size, extent, step, pad = window
    rounded = (size + 2 * pad - extent + step - 1) // step + 1
    return _count(size, extent, step, pad, ceil_mode=True) < rounded


def _count(size: int, extent: int, step: int, pad: int, ceil_mode: bool) -> int:
    """How many windows there are on an axis; none begins behind the image."""
    room = size + 2 * pad - extent
    if not ceil_mode:
        return room // step + 1
    count = (room + step - 1) // step + 1
    return count - 1 if (count - 1) * step >= size + pad else count


def _pixels(count: int, window: Sizes, padding_counts: bool, like: Tensor) -> Tensor:
    """How many pixels each of ``count`` windows (of an axis of that size; extent, stride, padding)
    averages."""
    size, extent, stride, padding = window
    begin = torch.arange(count, dtype=torch.int64, device=like.device) * stride - padding
    end = (begin + extent).clamp(max=size + padding)
    if not padding_counts:
        begin, end = begin.clamp(min=0), end.clamp(max=size)
    return (end - begin).to(like.dtype)


def adaptive_avg_pool(x: Tensor, output_size: Sizes) -> Tensor:
    """The average of every bin."""
    for axis, count in enumerate(output_size, -len(output_size)):
        x = along(x, axis, _bins(count, x.shape[axis], x).transpose(0, 1))
    return x


def _edges(size: int, count: int, device: Any) -> tuple[Tensor, Tensor]:
    """count × 1: where each bin on an axis begins, and where it ends."""
    row = torch.arange(count, dtype=torch.int64, device=device)[:, None]
    begin = (row * size).div(count, rounding_mode="floor")
    return begin, ((row + 1) * size + count - 1).div(count, rounding_mode="floor")


def _bins(count: int, size: int, like: Tensor) -> Tensor:
    """count × size: the weight of a pixel in each bin of an adaptive average."""
    begin, end = _edges(size, count, like.device)
    column = torch.arange(size, dtype=torch.int64, device=like.device)[None, :]
    inside = ((column >= begin) & (column < end)).to(like.dtype)
    return inside / (end - begin).to(like.dtype)


RANKS: dict[Any, int] = {
    aten.avg_pool1d.default: 1,
    aten.avg_pool2d.default: 2,
    aten.avg_pool3d.default: 3,
    aten.max_pool1d.default: 1,
    aten.max_pool2d.default: 2,
    aten.max_pool3d.default: 3,
}
"""How many axes a pool has."""
POOLS: dict[Any, Callable[..., Any]] = {
    aten.adaptive_max_pool2d.default: adaptive_max_pool,
    aten.adaptive_max_pool3d.default: adaptive_max_pool,
    aten._adaptive_avg_pool3d.default: adaptive_avg_pool,
    **{pool: partial(max_pool if "max" in str(pool) else average_pool, pool) for pool in RANKS},
}
