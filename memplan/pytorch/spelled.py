"""Functions of PyTorch written out in operators that have a form in ONNX and a gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from functools import wraps
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from memplan.errors import ModelError
from memplan.pytorch import layer_functions, loss_functions, randomness
from memplan.pytorch.calls import one_call
from memplan.pytorch.gradient_modes import Frozen, without_inference_mode
from memplan.pytorch.torch_internals import replaced

aten = torch.ops.aten
_ACTIVE: ContextVar[bool] = ContextVar("spelled", default=False)
_SHUT = -1e30
"""Added to scores that are masked; float32 holds it, and no score comes near."""


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``torch.nn.functional.scaled_dot_product_attention`` as its documentation writes it.

    The query is scaled rather than the scores, which are larger. A row that a Boolean mask shuts
    out whole gives zeros, as PyTorch's does.
    """
    if enable_gqa:
        key, value = (_repeated(t, query.shape[-3] // t.shape[-3]) for t in (key, value))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query * factor) @ key.transpose(-2, -1)
    seen: Any = None
    if is_causal:
        rows, columns = query.shape[-2], key.shape[-2]
        allowed = torch.ones((rows, columns), dtype=torch.bool, device=query.device).tril()
        scores = torch.where(allowed, scores, -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        seen = attn_mask.any(-1, keepdim=True)
        scores = torch.where(attn_mask, scores, max(_SHUT, torch.finfo(scores.dtype).min))
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = scores.softmax(-1)
    if dropout_p > 0.0:
        weights = aten.native_dropout(weights, dropout_p, True)[0]
    result = weights @ value
    return result if seen is None else torch.where(seen, result, 0.0)


def _repeated(x: Tensor, count: int) -> Tensor:
    """Each head ``count`` times."""
    *lead, heads, length, size = x.shape
    wide = x.unsqueeze(-3).expand(*lead, heads, count, length, size)
    return wide.reshape(*lead, heads * count, length, size)


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


def _in_type_of_weight(function: Callable[..., Any]) -> Callable[..., Any]:
    """A normalization that, under autocast, gets an input narrower than its weight: PyTorch's
    kernels compute in the weight's type, ONNX has no such mixture."""

    @wraps(function)
    def computed(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        others = (*args, *kwargs.values())
        kinds = {t.dtype for t in others if isinstance(t, Tensor) and t.is_floating_point()}
        if not kinds or kinds == {input.dtype}:
            found: Tensor = function(input, *args, **kwargs)
            return found
        widest = max(kinds, key=lambda kind: torch.finfo(kind).bits)
        result: Tensor = function(input.to(widest), *args, **kwargs)
        return result.to(input.dtype)

    return computed


_NORMS = ("layer_norm", "group_norm", "batch_norm", "instance_norm", "rms_norm")
_SPELLED: dict[Any, Callable[..., Any]] = {
    functional.scaled_dot_product_attention: attention,
    functional.embedding_bag: embedding_bag,
    **layer_functions.SPELLED,
    **loss_functions.SPELLED,
    **randomness.SPELLED,
    **{f: _in_type_of_weight(f) for f in (getattr(functional, name) for name in _NORMS)},
}
_SPELLED = {f: one_call(own, f.__name__) for f, own in _SPELLED.items()}


class _Replacing(TorchFunctionMode):
    """Replaces functions that are called from outside of PyTorch, by whatever name."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = Frozen()
        self.own = {
            **_SPELLED,
            **layer_functions.CALLED,
            **randomness.CALLED,
            **self.frozen.functions(),
        }

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
        args, kwargs = self.frozen.stopped(func, (args, kwargs or {}))
        return func(*args, **kwargs)


@contextmanager
def spelled() -> Iterator[None]:
    """Inside, functions are replaced by what is written out here, whoever calls them: PyTorch's
    own modules find them by name, others may have imported them (:func:`replacing`)."""
    with ExitStack() as stack:
        for function, own in _SPELLED.items():
            stack.enter_context(mock.patch.object(functional, function.__name__, own))
        for function, own in layer_functions.NAMED.items():
            stack.enter_context(mock.patch.object(torch, function.__name__, own))
        stack.enter_context(without_inference_mode())
        stack.enter_context(replaced("torch.distributions.Distribution._validate_args", False))
        token = _ACTIVE.set(True)
        stack.callback(_ACTIVE.reset, token)
        yield


def replacing() -> AbstractContextManager[Any]:
    """What the user's code is to be run in: inside of :func:`spelled`, replacements of what it
    calls by whatever name; outside nothing. PyTorch's own code around it must not be in it."""
    return _Replacing() if _ACTIVE.get() else nullcontext()
