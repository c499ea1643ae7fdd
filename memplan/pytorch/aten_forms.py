"""The operators of ATen that are written out before they become ONNX: one table.

ONNX, its exporter or its runtime have no right form for them, or one whose gradient is not
PyTorch's. ``torch.export`` leaves operators as a step calls them, so that this is the only place
where numbers are looked after; what looks at values before there are operators is in
:mod:`memplan.pytorch.traced_calls`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from memplan.pytorch.layer_forms import LAYERS, NORMS, in_type_of_weight
from memplan.pytorch.pool_forms import POOLS
from memplan.pytorch.surrogate_exports import backward_through
from memplan.pytorch.ties import clamp, installed_shares, stable_sort, tie_table

aten, prims = torch.ops.aten, torch.ops.prims
Form = Callable[..., Any]
NONE, MEAN = 0, 1
REDUCTIONS = ("none", "mean", "sum")
"""By the numbers that ATen has for them."""


def aten_forms(exporters: Mapping[Any, Form]) -> dict[Any, Form]:
    """The decompositions of a program: the exporter's own, and instead of some of them ours. One
    that gives ``NotImplemented`` leaves the operator as it is."""
    return {
        **exporters,
        **LAYERS,
        **{norm: in_type_of_weight(norm, exporters.get(norm)) for norm in NORMS},
        **POOLS,
        **_FORMS,
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


# -- losses: the exporter leaves a part of them away, or refuses them ------------------------------


def reduced(loss: Tensor, reduction: int) -> Tensor:
    """The sum, the mean, or all of it."""
    if reduction == NONE:
        return loss
    return loss.mean() if reduction == MEAN else loss.sum()


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    """``torch.nn.functional.cross_entropy``, for which the exporter has labels of a batch alone:
    its operator knows neither probabilities nor smoothing."""
    soft = target.is_floating_point()
    if not soft and not label_smoothing and logits.dim() > 1:
        return NotImplemented
    if logits.dim() == 1:
        options = (weight, reduction, ignore_index, label_smoothing)
        found = aten.cross_entropy_loss.default(logits[None], target[None], *options)
        return found.squeeze(0) if reduction == NONE else found
    logs = functional.log_softmax(logits, 1)
    if soft:
        return _by_probabilities(logs, target, weight, reduction, label_smoothing)
    wanted = functional.nll_loss(
        logs, target, weight, ignore_index=ignore_index, reduction=REDUCTIONS[reduction]
    )
    share = label_smoothing / logits.shape[1]
    even = _even(logs, target, weight, ignore_index, reduction) * share
    return wanted * (1 - label_smoothing) + even


def _by_class(weight: Tensor, logs: Tensor) -> Tensor:
    """Weights of classes as they go with the second axis."""
    return weight.reshape([-1, *(1 for _ in logs.shape[2:])])


def _by_probabilities(
    logs: Tensor, target: Tensor, weight: Tensor | None, reduction: int, smoothing: float
) -> Tensor:
    if smoothing:
        target = target * (1 - smoothing) + smoothing / logs.shape[1]
    weighted = logs if weight is None else logs * _by_class(weight, logs)
    loss = -(weighted * target).sum(1)
    return reduced(loss, reduction)


def _even(
    logs: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: int
) -> Tensor:
    """The loss if every class was wanted alike, reduced as PyTorch does."""
    weighted = logs if weight is None else logs * _by_class(weight, logs)
    counted = target != ignore_index
    loss = -torch.where(counted, weighted.sum(1), 0.0)
    if reduction != MEAN:
        return reduced(loss, reduction)
    if weight is None:
        return loss.sum() / counted.sum()
    share = torch.where(counted, weight[torch.where(counted, target, 0)], 0.0)
    return loss.sum() / share.sum()


def multilabel_margin_loss(scores: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    """``torch.nn.functional.multilabel_margin_loss``: of each row, the labels before the first
    negative one are wanted. PyTorch's own decomposition has another gradient at a margin of 0."""
    wanted = (target < 0).to(torch.int64).cumsum(-1) == 0
    labels = torch.where(wanted, target, 0)
    places = torch.arange(scores.shape[-1], device=scores.device)
    listed = ((labels.unsqueeze(-1) == places) & wanted.unsqueeze(-1)).any(-2)
    picked = scores.gather(-1, labels).unsqueeze(-1)
    margins = (1 - picked + scores.unsqueeze(-2)).relu()  # which has no gradient at 0
    counted = wanted.unsqueeze(-1) & ~listed.unsqueeze(-2)
    loss = torch.where(counted, margins, 0.0).sum((-2, -1)) / scores.shape[-1]
    return reduced(loss, reduction)


# -- random numbers, by the two sources that ONNX has: uniform and normal ones ---------------------


def native_dropout(x: Tensor, p: float, train: bool | None = True) -> Any:
    """Dropout; ONNX has none that drops everything."""
    return (x * 0.0, torch.zeros_like(x, dtype=torch.bool)) if p == 1 and train else NotImplemented


def multinomial(
    weights: Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None
) -> Any:
    """``torch.multinomial``. Without replacement: the first that come of exponential times, whose
    rates are the weights, which is the same as drawing one after the other."""
    if replacement or num_samples == 1:
        return NotImplemented
    speeds = weights / -torch.log(torch.rand_like(weights))
    return speeds.topk(num_samples, dim=-1).indices


def randperm(n: int, *, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> Tensor:
    """``torch.randperm``: the order of as many random numbers."""
    return torch.rand(n, device=device).argsort().to(dtype or torch.int64)


def normal(mean: Any, std: Any = 1.0, **_: Any) -> Tensor:
    """``torch.normal`` of tensors, through which no gradient comes."""
    like = mean + torch.zeros_like(std) if isinstance(std, Tensor) else mean
    return backward_through(mean + std * torch.randn_like(like))


def uniform(x: Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> Tensor:
    """``torch.Tensor.uniform_``."""
    return torch.rand_like(x) * (high - low) + low


# -- order statistics, masks and products ----------------------------------------------------------


def median(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The lower of the two in the middle and its place; NaN if there is one."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    whole = not x.is_floating_point()
    lost = torch.zeros_like(x, dtype=torch.bool) if whole else x.isnan()
    values, places = torch.where(lost, math.inf, x).sort(dim) if not whole else x.sort(dim)
    first = lost.to(torch.int64).argmax(dim, keepdim=True)
    any_lost = lost.any(dim, keepdim=True)
    middle = torch.full_like(first, (x.shape[dim] - 1) // 2)
    value, place = values.gather(dim, middle), places.gather(dim, middle)
    if not whole:
        value = torch.where(any_lost, math.nan, value)
    place = torch.where(any_lost, first, place)
    return (value, place) if keepdim else (value.squeeze(dim), place.squeeze(dim))


def median_of_all(x: Tensor) -> Tensor:
    """The median of all elements; elements equal to it share its gradient evenly."""
    value = median(x.reshape(-1), 0)[0]
    if not x.is_floating_point():
        return value
    equal = x == value
    return backward_through(value, torch.where(equal, x, 0.0).sum() / equal.sum())


def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """What an index by a mask gives."""
    x, mask = torch.broadcast_tensors(x, mask)
    return aten.index.Tensor(x, [mask])


def product(x: Tensor, dims: Sequence[int] | None, *, output_dtype: Any = None) -> Tensor:
    """The product along several axes, one by one."""
    found = x if output_dtype is None else x.to(output_dtype)
    for dim in sorted(range(x.dim()) if dims is None else dims, reverse=True):
        found = aten.prod.dim_int(found, dim)
    return found


_FORMS: dict[Any, Form] = {
    aten.cross_entropy_loss.default: cross_entropy,
    aten.multilabel_margin_loss.default: multilabel_margin_loss,
    aten.native_dropout.default: native_dropout,
    aten.multinomial.default: multinomial,
    aten.randperm.default: randperm,
    aten.normal.Tensor_float: normal,
    aten.normal.float_Tensor: normal,
    aten.normal.Tensor_Tensor: normal,
    aten.uniform.default: uniform,
    aten.median.default: median_of_all,
    aten.median.dim: median,
    aten.masked_select.default: masked_select,
    prims.prod.default: product,
    prims.hypot.default: lambda x, y: (x * x + y * y).sqrt(),
    prims.signbit.default: lambda x: (x < 0) | (1 / x < 0),
    aten.sort.stable: stable_sort,
    aten.clamp.default: clamp,
    aten.copy.default: copied,
    aten.relu.default: relu,
    aten.scatter_reduce.two: scatter_reduce,
}
