"""Order statistics, masks and products of ATen, in terms of operators that ONNX has."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from memplan.pytorch.surrogate_exports import backward_through

aten, prims = torch.ops.aten, torch.ops.prims


def median(
    x: Tensor, dim: int, keepdim: bool = False, *, skip: bool = False
) -> tuple[Tensor, Tensor]:
    """The lower of the two in the middle and its place; NaN if there is one that is not skipped."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    whole = not x.is_floating_point()
    lost = torch.zeros_like(x, dtype=torch.bool) if whole else x.isnan()
    values, places = torch.where(lost, math.inf, x).sort(dim) if not whole else x.sort(dim)
    if skip:
        count = (~lost).sum(dim, keepdim=True)
        middle = ((count - 1).clamp(min=0)).div(2, rounding_mode="floor")
        any_lost = count == 0
    else:
        first = lost.to(torch.int64).argmax(dim, keepdim=True)
        any_lost = lost.any(dim, keepdim=True)
        middle = torch.full_like(first, (x.shape[dim] - 1) // 2)
    value, place = values.gather(dim, middle), places.gather(dim, middle)
    if not whole:
        value = torch.where(any_lost, math.nan, value)
    if not skip:
        place = torch.where(any_lost, first, place)
    return (value, place) if keepdim else (value.squeeze(dim), place.squeeze(dim))


def median_of_all(x: Tensor, *, skip: bool = False) -> Tensor:
    """The median of all elements; elements equal to it share its gradient evenly."""
    value = median(x.reshape(-1), 0, skip=skip)[0]
    if not x.is_floating_point():
        return value
    equal = x == value
    return backward_through(value, torch.where(equal, x, 0.0).sum() / equal.sum())


def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The k-th smallest element and its place."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    values, places = x.sort(dim)
    value, place = values.narrow(dim, k - 1, 1), places.narrow(dim, k - 1, 1)
    return (value, place) if keepdim else (value.squeeze(dim), place.squeeze(dim))


def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """What an index by a mask gives."""
    x, mask = torch.broadcast_tensors(x, mask)
    return aten.index.Tensor(x, [mask])


def most_of_booleans(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    """Maxima of Boolean tensors, for which ONNX has no form, as those of numbers."""
    if x.dtype != torch.bool:
        return NotImplemented
    values, places = x.to(torch.int64).max(dim, keepdim)
    return values.to(torch.bool), places


def product(x: Tensor, dims: Sequence[int] | None, *, output_dtype: Any = None) -> Tensor:
    """The product along several axes, one by one."""
    found = x if output_dtype is None else x.to(output_dtype)
    for dim in sorted(range(x.dim()) if dims is None else dims, reverse=True):
        found = aten.prod.dim_int(found, dim)
    return found


SELECTIONS: dict[Any, Callable[..., Any]] = {
    aten.median.default: median_of_all,
    aten.median.dim: median,
    aten.nanmedian.default: partial(median_of_all, skip=True),
    aten.nanmedian.dim: partial(median, skip=True),
    aten.kthvalue.default: kthvalue,
    aten.masked_select.default: masked_select,
    aten.max.dim: most_of_booleans,
    prims.prod.default: product,
    prims.hypot.default: lambda x, y: (x * x + y * y).sqrt(),
    prims.signbit.default: lambda x: (x < 0) | (1 / x < 0),
}
