"""The operators of ATen that are written out before they become ONNX: one table.

ONNX, its exporter or its runtime have no right form for them, or one whose gradient is not
PyTorch's. ``torch.export`` leaves operators as a step calls them, so that this is the only place
where numbers are looked after; what looks at values before there are operators is in
:mod:`memplan.pytorch.traced_calls`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from memplan.pytorch.layer_forms import LAYERS, NORMS, in_type_of_weight
from memplan.pytorch.loss_forms import LOSSES
from memplan.pytorch.pool_forms import POOLS
from memplan.pytorch.random_forms import RANDOM_FORMS
from memplan.pytorch.selection_forms import SELECTIONS
from memplan.pytorch.ties import clamp, installed_shares, stable_sort, tie_table

aten = torch.ops.aten
Sizes = Sequence[int]
Form = Callable[..., Any]


def aten_forms(exporters: Mapping[Any, Form]) -> dict[Any, Form]:
    """The decompositions of a program: the exporter's own, and instead of some of them ours. One
    that gives ``NotImplemented`` leaves the operator as it is."""
    return {
        **exporters,
        **LAYERS,
        **{norm: in_type_of_weight(norm, exporters.get(norm)) for norm in NORMS},
        **LOSSES,
        **RANDOM_FORMS,
        **POOLS,
        **SELECTIONS,
        aten.sort.stable: stable_sort,
        aten.clamp.default: clamp,
        aten.copy.default: copied,
        aten.relu.default: relu,
        aten.scatter_reduce.two: scatter_reduce,
        aten._trilinear.default: trilinear,
        **tie_table(installed_shares()),
    }


def copied(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """A tensor written over, as large as it was: the exporter does not spread what is written."""
    return source.to(x.dtype).expand(x.shape)


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
