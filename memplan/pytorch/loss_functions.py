"""Losses of PyTorch written out, where the exporter leaves a part of them away or refuses them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from memplan.errors import ModelError
from memplan.pytorch.surrogate_exports import backward_through

_cross_entropy = functional.cross_entropy


def reduced(loss: Tensor, reduction: str) -> Tensor:
    """The sum, the mean, or all of it.

    Raises:
        ValueError: the reduction has another name.
    """
    if reduction == "none":
        return loss
    if reduction not in ("mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    return loss.mean() if reduction == "mean" else loss.sum()


def _of_flags(size_average: bool | None, reduce: bool | None) -> str:
    """The reduction by the names of old."""
    if reduce is False:
        return "none"
    return "sum" if size_average is False else "mean"


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """``torch.nn.functional.cross_entropy``, for which the exporter has labels of a batch alone:
    its operator knows neither probabilities nor smoothing."""
    if size_average is not None or reduce is not None:
        reduction = _of_flags(size_average, reduce)
    soft = target.is_floating_point()
    if not soft and not label_smoothing and input.dim() > 1:
        return _cross_entropy(input, target, weight, ignore_index=ignore_index, reduction=reduction)
    if input.dim() == 1:
        found = cross_entropy(
            input[None],
            target[None],
            weight,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
        )
        return found.squeeze(0) if reduction == "none" else found
    logs = functional.log_softmax(input, 1)
    if soft:
        return _by_probabilities(logs, target, weight, reduction, label_smoothing)
    wanted = functional.nll_loss(
        logs, target, weight, ignore_index=ignore_index, reduction=reduction
    )
    if not label_smoothing:
        return wanted
    even = _even(logs, target, weight, ignore_index, reduction) * (label_smoothing / input.shape[1])
    return wanted * (1 - label_smoothing) + even


def _by_class(weight: Tensor, logs: Tensor) -> Tensor:
    """Weights of classes as they go with the second axis."""
    return weight.reshape([-1, *(1 for _ in logs.shape[2:])])


def _by_probabilities(
    logs: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float
) -> Tensor:
    if smoothing:
        target = target * (1 - smoothing) + smoothing / logs.shape[1]
    weighted = logs if weight is None else logs * _by_class(weight, logs)
    loss = -(weighted * target).sum(1)
    return reduced(loss, reduction)


def _even(
    logs: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str
) -> Tensor:
    """The loss if every class was wanted alike, reduced as PyTorch does."""
    weighted = logs if weight is None else logs * _by_class(weight, logs)
    counted = target != ignore_index
    loss = -torch.where(counted, weighted.sum(1), 0.0)
    if reduction != "mean":
        return reduced(loss, reduction)
    if weight is None:
        return loss.sum() / counted.sum()
    share = torch.where(counted, weight[torch.where(counted, target, 0)], 0.0)
    return loss.sum() / share.sum()


def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """``torch.nn.functional.gaussian_nll_loss`` without its look at the sign of ``var``, which
    would be a branch on values. Where the variance is clamped, its gradient is not."""
    if isinstance(var, int | float):
        var = var * torch.ones_like(input)
    if var.shape != input.shape and input.shape[:-1] == var.shape:
        var = var.unsqueeze(-1)
    var = backward_through(var.clamp(min=eps), var)
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return reduced(loss, reduction)


def multilabel_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """``torch.nn.functional.multilabel_margin_loss``: of each row, the labels before the first
    negative one are wanted. (PyTorch's own decomposition gives another loss than its kernel, 2.13.)
    """
    if size_average is not None or reduce is not None:
        reduction = _of_flags(size_average, reduce)
    wanted = (target < 0).to(torch.int64).cumsum(-1) == 0
    labels = torch.where(wanted, target, 0)
    places = torch.arange(input.shape[-1], device=input.device)
    listed = ((labels.unsqueeze(-1) == places) & wanted.unsqueeze(-1)).any(-2)
    picked = input.gather(-1, labels).unsqueeze(-1)
    margins = (1 - picked + input.unsqueeze(-2)).relu()  # which has no gradient at 0
    counted = wanted.unsqueeze(-1) & ~listed.unsqueeze(-2)
    loss = torch.where(counted, margins, 0.0).sum((-2, -1)) / input.shape[-1]
    return reduced(loss, reduction)


def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """``torch.nn.functional.multi_margin_loss``, whose kernel has no gradient at a margin of 0, as
    its decomposition has.

    Raises:
        ValueError: the power is neither 1 nor 2.
    """
    if p not in (1, 2):
        raise ValueError("only p == 1 and p == 2 supported")
    if size_average is not None or reduce is not None:
        reduction = _of_flags(size_average, reduce)
    labels = target.reshape([*input.shape[:-1], 1])
    margins = (margin - input.gather(-1, labels) + input).relu()
    if p == 2:
        margins = margins * margins
    if weight is not None:
        margins = margins * weight[labels]
    places = torch.arange(input.shape[-1], device=input.device)
    loss = torch.where(places == labels, 0.0, margins).sum(-1) / input.shape[-1]
    return reduced(loss, reduction)


def ctc_loss(*args: object, **kwargs: object) -> Tensor:
    """No form of it in ONNX.

    Raises:
        ModelError: always.
    """
    raise ModelError(
        "ctc_loss cannot be captured: ONNX has no form for it",
        "write its recursion with torch operations, or leave the loss to PyTorch",
    )


SPELLED: dict[Any, Callable[..., Any]] = {
    functional.ctc_loss: ctc_loss,
    functional.cross_entropy: cross_entropy,
    functional.gaussian_nll_loss: gaussian_nll_loss,
    functional.multi_margin_loss: multi_margin_loss,
    functional.multilabel_margin_loss: multilabel_margin_loss,
}
