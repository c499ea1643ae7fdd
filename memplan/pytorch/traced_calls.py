"""What a step calls while it is traced that looks at values, or at modes that torch.export does not
see: said in ways that it does.

``torch.inference_mode`` is ``no_grad``, and where gradients end is said by
:mod:`memplan.pytorch.gradient_stops`. Functions that branch on values, or have no form at all, are
written out or refused here; all others are in :mod:`memplan.pytorch.aten_forms`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.autograd.grad_mode import inference_mode
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from memplan.errors import ModelError
from memplan.pytorch.aten_forms import REDUCTIONS, reduced
from memplan.pytorch.custom_backward import current_recorder
from memplan.pytorch.gradient_stops import GradientStops
from memplan.pytorch.surrogate_exports import backward_through
from memplan.pytorch.torch_internals import replaced

_KEPT = "_memplan_mode"
_TRACED: ContextVar[bool] = ContextVar("traced", default=False)


@contextmanager
def without_inference_mode() -> Iterator[None]:
    """Inside, ``inference_mode`` is ``no_grad``: torch.export loses the first."""

    def enter(self: Any) -> None:
        mode = torch.set_grad_enabled(not self.mode)
        vars(self).setdefault(_KEPT, []).append(mode)

    def leave(self: Any, *_: object) -> None:
        torch.set_grad_enabled(vars(self)[_KEPT].pop().prev)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(inference_mode, "__enter__", enter))
        stack.enter_context(mock.patch.object(inference_mode, "__exit__", leave))
        yield


def embedding(input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """``torch.nn.functional.embedding``.

    Raises:
        ModelError: the norm of rows is limited.
    """
    if kwargs.get("max_norm", args[1] if len(args) > 1 else None) is not None:
        raise ModelError(
            "embedding with max_norm changes its weights in the forward part, and they are trained",
            "limit the norm in the step's loss, or after the update, instead",
        )
    return functional.embedding(input, weight, *args, **kwargs)


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """``torch.nn.functional.embedding_bag``: rows of a table, summed or averaged by bag.

    Raises:
        ModelError: the largest of each bag, a limited norm, scaled gradients.
    """
    if mode not in ("sum", "mean") or max_norm is not None or scale_grad_by_freq:
        raise ModelError(
            "embedding_bag with mode='max', max_norm or scale_grad_by_freq cannot be captured",
            "take functional.embedding, and .amax(1) of it",
        )
    rows = functional.embedding(input, weight)
    counted = torch.ones_like(input, dtype=weight.dtype)
    if padding_idx is not None:
        counted = (input != padding_idx).to(weight.dtype)
        rows = rows * counted.unsqueeze(-1)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if offsets is None:
        total, count = rows.sum(1), counted.sum(1)
    else:
        begins = offsets[:-1] if include_last_offset else offsets
        place = torch.arange(input.shape[0], device=input.device)
        bag = (place[:, None] >= begins[None, :]).sum(-1) - 1
        empty = rows.new_zeros([begins.shape[0], rows.shape[-1]])
        total = empty.index_add(0, bag, rows)
        count = counted.new_zeros([begins.shape[0]]).index_add(0, bag, counted)
    return total if mode == "sum" else total / count.clamp(min=1.0).unsqueeze(-1)


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
    return reduced(loss, REDUCTIONS.index(reduction))


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
    the decomposition has that torch.export puts in its place.

    Raises:
        ValueError: the power is neither 1 nor 2.
    """
    if p not in (1, 2):
        raise ValueError("only p == 1 and p == 2 supported")
    if size_average is not None or reduce is not None:  # the names of old
        reduction = "none" if reduce is False else "sum" if size_average is False else "mean"
    labels = target.reshape([*input.shape[:-1], 1])
    margins = (margin - input.gather(-1, labels) + input).relu()
    if p == 2:
        margins = margins * margins
    if weight is not None:
        margins = margins * weight[labels]
    places = torch.arange(input.shape[-1], device=input.device)
    loss = torch.where(places == labels, 0.0, margins).sum(-1) / input.shape[-1]
    return reduced(loss, REDUCTIONS.index(reduction))


_FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    functional.embedding: embedding,
    functional.embedding_bag: embedding_bag,
    functional.gaussian_nll_loss: gaussian_nll_loss,
    functional.multi_margin_loss: multi_margin_loss,
}


class _Traced(TorchFunctionMode):
    """Replaces functions that are called from outside of PyTorch, by whatever name."""

    def __init__(self) -> None:
        super().__init__()
        self.stops = GradientStops()
        recorder = current_recorder()
        self.own = {**_FUNCTIONS, **self.stops.functions()}
        self.own |= {} if recorder is None else recorder.functions()

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """See the class."""
        if func in self.own:
            return self.own[func](*args, **(kwargs or {}))
        return self.stops.call(func, args, kwargs or {})


@contextmanager
def tracing() -> Iterator[None]:
    """Inside, a step is traced: what it calls is seen to (:func:`traced_calls`)."""
    with ExitStack() as stack:
        stack.enter_context(without_inference_mode())
        stack.enter_context(replaced("torch.distributions.Distribution._validate_args", False))
        token = _TRACED.set(True)
        stack.callback(_TRACED.reset, token)
        yield


def traced_calls() -> AbstractContextManager[Any]:
    """What the user's code is to be run in: inside of :func:`tracing` replacements, outside
    nothing. PyTorch's own code around it must not be in it."""
    return _Traced() if _TRACED.get() else nullcontext()
