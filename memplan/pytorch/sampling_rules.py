"""Backwards of padding and sampling, in terms of operators that ONNX has: pixels that are read at
computed places get their gradients by a scatter.

Resizing needs none: torch writes it out above autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
Sizes = Sequence[int]


def sampling_table() -> dict[Any, Callable[..., Any]]:
    """Decompositions of backwards."""
    return {
        aten.replication_pad1d_backward.default: replication_backward,
        aten.replication_pad2d_backward.default: replication_backward,
        aten.replication_pad3d_backward.default: replication_backward,
        aten.grid_sampler_2d_backward.default: grid_sampler_backward,
    }


def replication_backward(grad: Tensor, x: Tensor, padding: Sizes) -> Tensor:
    """Every pixel gets the sum of its copies."""
    for pair in range(len(padding) // 2):
        axis = x.dim() - 1 - pair
        count, size = grad.shape[axis], x.shape[axis]
        row = torch.arange(count, dtype=torch.int64, device=grad.device)
        row = (row - padding[2 * pair]).clamp(0, size - 1)
        place = row.reshape([-1, *[1] * (x.dim() - 1 - axis)]).expand(grad.shape)
        shape = list(grad.shape)
        shape[axis] = size
        grad = grad.new_zeros(shape).scatter_add(axis, place, grad)
    return grad


def grid_sampler_backward(
    grad: Tensor,
    x: Tensor,
    grid: Tensor,
    interpolation: int,
    padding: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of ``grid_sample`` by the image and by the grid, bilinear or of the nearest.

    Raises:
        NotImplementedError: it is bicubic.
    """
    if interpolation == 2:
        raise NotImplementedError("the backward of grid_sample with mode='bicubic'")
    samples, channels, height, width = x.shape
    (across, by_across), (down, by_down) = (
        _pixel(grid[..., k], (width, height)[k], padding, align_corners) for k in range(2)
    )
    flat, rows = x.reshape([samples, channels, -1]), grad.reshape([samples, channels, -1])
    total = grad.new_zeros(flat.shape)
    to_across, to_down = torch.zeros_like(across), torch.zeros_like(down)
    for left, top, weight, slope_across, slope_down in _corners(across, down, interpolation):
        inside = (left >= 0) & (left < width) & (top >= 0) & (top < height)
        place = top.clamp(0, height - 1) * width + left.clamp(0, width - 1)
        index = place.to(torch.int64).reshape([samples, 1, -1]).expand(rows.shape)
        share = (weight * inside.to(grad.dtype)).reshape([samples, 1, -1])
        total = total.scatter_add(-1, index, rows * share)
        if interpolation == 0 and output_mask[1]:
            seen = (flat.gather(-1, index) * rows).sum(1).reshape(across.shape)
            seen = seen * inside.to(grad.dtype)
            to_across, to_down = to_across + seen * slope_across, to_down + seen * slope_down
    by_grid = torch.stack([to_across * by_across, to_down * by_down], -1)
    return total.reshape(x.shape), by_grid if output_mask[1] else None


def _corners(across: Tensor, down: Tensor, interpolation: int) -> list[tuple[Any, ...]]:
    """The pixels that are read: place, weight, and the weight's derivatives."""
    if interpolation == 1:
        return [(across.round(), down.round(), torch.ones_like(across), 0.0, 0.0)]
    left, top = across.floor(), down.floor()
    x, y = across - left, down - top
    return [
        (left, top, (1 - x) * (1 - y), y - 1, x - 1),
        (left + 1, top, x * (1 - y), 1 - y, -x),
        (left, top + 1, (1 - x) * y, -y, 1 - x),
        (left + 1, top + 1, x * y, y, x),
    ]


def _pixel(place: Tensor, size: int, padding: int, align_corners: bool) -> tuple[Tensor, Tensor]:
    """Where a place between -1 and 1 lies in pixels, and the derivative of that."""
    scale = (size - 1) / 2 if align_corners else size / 2
    found = (place + 1) * scale - (0.0 if align_corners else 0.5)
    slope = torch.full_like(found, scale)
    if padding == 2:
        low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
        span = max(high - low, 1e-30)
        away = (found - low).abs()
        turns = (away / span).floor()
        rest = away - turns * span
        odd = turns - 2 * (turns / 2).floor()
        sign = torch.where(found < low, -1.0, 1.0) * (1 - 2 * odd)
        found, slope = low + rest * (1 - 2 * odd) + odd * span, slope * sign
    if padding:
        inside = (found > 0) & (found < size - 1)
        found, slope = found.clamp(0.0, size - 1.0), slope * inside.to(slope.dtype)
    return found, slope
