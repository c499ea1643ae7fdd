"""Forward operators of ATen that ONNX, its exporter or its runtime have no right form for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from memplan.pytorch.pool_rules import pool_forms
from memplan.pytorch.selection_rules import selection_forms
from memplan.pytorch.ties import clamp

aten = torch.ops.aten
Sizes = Sequence[int]


def forward_forms() -> dict[Any, Callable[..., Any]]:
    """Decompositions of them."""
    return {
        **pool_forms(),
        **selection_forms(),
        aten.clamp.default: clamp,
        aten.copy.default: copied,
        aten.relu.default: relu,
        aten.scatter_reduce.two: scatter_reduce,
        aten.select_scatter.default: select_scatter,
        aten._trilinear.default: trilinear,
    }


def copied(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """A tensor written over, as large as it was: the exporter does not spread what is written."""
    return source.to(x.dtype).expand(x.shape)


def select_scatter(x: Tensor, source: Tensor, dim: int, index: int) -> Tensor:
    """One slice written over."""
    places = torch.arange(x.shape[dim], device=x.device)
    chosen = places == index % x.shape[dim]
    shape = [-1 if axis == dim % x.dim() else 1 for axis in range(x.dim())]
    return torch.where(chosen.reshape(shape), source.unsqueeze(dim), x)


def relu(x: Tensor) -> Any:
    """Of whole numbers, of which ONNX Runtime has none."""
    return NotImplemented if x.is_floating_point() else x.clamp(min=0)


def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """Means, which ONNX has not: sums by counts. Sums as :func:`scatter_add`."""
    if reduce not in ("mean", "sum") or not x.is_floating_point():
        return NotImplemented
    ones = torch.ones(source.shape, dtype=x.dtype, device=x.device)
    count = aten.scatter_add(torch.zeros_like(x), dim, index, ones)
    kept = x if include_self else torch.where(count > 0, 0.0, x)
    total = aten.scatter_add(kept, dim, index, source)
    if reduce == "sum":
        return total
    return total / (count + 1 if include_self else count.clamp(min=1.0))


def trilinear(
    x: Tensor,
    y: Tensor,
    z: Tensor,
    expand_x: Sizes,
    expand_y: Sizes,
    expand_z: Sizes,
    summed: Sizes,
    unroll_dim: int = 1,
) -> Tensor:
    """A product of three, spread along some axes and summed along others."""
    for axis in expand_x:
        x = x.unsqueeze(axis)
    for axis in expand_y:
        y = y.unsqueeze(axis)
    for axis in expand_z:
        z = z.unsqueeze(axis)
    return (x * y * z).sum(list(summed))
