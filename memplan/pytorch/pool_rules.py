"""Pools of ATen in one to three dimensions, in terms of operators that ONNX has.

Adaptive averages are products with the matrices that average, one per axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from memplan.pytorch.surrogate_exports import backward_through

aten = torch.ops.aten
Sizes = Sequence[int]


def pool_forms() -> dict[Any, Callable[..., Any]]:
    """Decompositions of adaptive pools."""
    return {
        aten.adaptive_max_pool2d.default: adaptive_max_pool,
        aten.adaptive_max_pool3d.default: adaptive_max_pool,
        aten._adaptive_avg_pool3d.default: adaptive_avg_pool,
    }


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


def pixels(count: int, window: Sizes, padding_counts: bool, like: Tensor) -> Tensor:
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
