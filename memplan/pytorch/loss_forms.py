"""Losses of ATen written out, where the exporter leaves a part of them away or refuses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

aten = torch.ops.aten
NONE, MEAN = 0, 1
REDUCTIONS = ("none", "mean", "sum")
"""By the numbers that ATen has for them."""


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
    negative one are wanted. (PyTorch's own decomposition gives another loss than its kernel, 2.13.)
    """
    wanted = (target < 0).to(torch.int64).cumsum(-1) == 0
    labels = torch.where(wanted, target, 0)
    places = torch.arange(scores.shape[-1], device=scores.device)
    listed = ((labels.unsqueeze(-1) == places) & wanted.unsqueeze(-1)).any(-2)
    picked = scores.gather(-1, labels).unsqueeze(-1)
    margins = (1 - picked + scores.unsqueeze(-2)).relu()  # which has no gradient at 0
    counted = wanted.unsqueeze(-1) & ~listed.unsqueeze(-2)
    loss = torch.where(counted, margins, 0.0).sum((-2, -1)) / scores.shape[-1]
    return reduced(loss, reduction)


LOSSES: dict[Any, Callable[..., Any]] = {
    aten.cross_entropy_loss.default: cross_entropy,
    aten.multilabel_margin_loss.default: multilabel_margin_loss,
}
