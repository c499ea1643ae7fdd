"""Layers of ATen written out, whose gradient or sizes are not those of their ONNX form."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from memplan.pytorch.surrogate_exports import backward_through

aten = torch.ops.aten
_BY_PAIR = 25
"""Points of either side up to which PyTorch takes differences of pairs."""
_IF_NECESSARY, _BY_PRODUCT = 0, 1
"""Of ``cdist``: where a matrix product is taken."""
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


def embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Rows of a table. The row at ``padding_idx`` gets no gradient; with ``scale_grad_by_freq``
    that of a row is divided by how often it was read."""
    if padding_idx < 0 and not scale_grad_by_freq:
        return NotImplemented
    rows = surrogate = aten.embedding.default(weight, indices)
    if scale_grad_by_freq:
        ones = torch.ones_like(indices, dtype=weight.dtype)
        counts = weight.new_zeros([weight.shape[0]]).index_add(0, indices.flatten(), ones.flatten())
        surrogate = surrogate / counts[indices].unsqueeze(-1)
    if padding_idx >= 0:
        surrogate = torch.where((indices == padding_idx).unsqueeze(-1), 0.0, surrogate)
    return backward_through(rows, surrogate)


def in_type_of_weight(norm: Any, otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    """A normalization that, under autocast, gets an input narrower than its weight: PyTorch's
    kernels compute in the weight's type, ONNX has no such mixture. ``otherwise`` is its form where
    that is not so."""

    def computed(x: Tensor, *args: Any, **options: Any) -> Any:
        others = (*args, *options.values())
        kinds = {t.dtype for t in others if isinstance(t, Tensor) and t.is_floating_point()}
        if not kinds or kinds == {x.dtype}:
            return NotImplemented if otherwise is None else otherwise(x, *args, **options)
        widest = max(kinds, key=lambda kind: torch.finfo(kind).bits)
        return norm(x.to(widest), *args, **options).to(x.dtype)

    return computed


def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: int | None = None) -> Tensor:
    """``torch.cdist``: by a matrix product where PyTorch takes one, otherwise pair by pair."""
    large = x1.shape[-2] > _BY_PAIR or x2.shape[-2] > _BY_PAIR
    if_necessary = compute_mode in (None, _IF_NECESSARY) and large
    if p != 2 or not (if_necessary or compute_mode == _BY_PRODUCT):
        return _distance(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)
    squares = x1.square().sum(-1, keepdim=True) + x2.square().sum(-1).unsqueeze(-2)
    apart = squares - 2 * (x1 @ x2.transpose(-2, -1))
    near = apart <= 0
    return torch.where(near, 0.0, torch.where(near, 1.0, apart).sqrt())


def _distance(apart: Tensor, p: float) -> Tensor:
    """The norm of the last axis. By the largest element, every one that is largest has all of the
    gradient: those of PyTorch's distances do, where its norms share it."""
    if p != math.inf:
        return torch.linalg.vector_norm(apart, p, -1)
    sizes = apart.abs()
    largest = sizes.amax(-1, keepdim=True)
    each = torch.where(sizes == largest, sizes, 0.0)
    return backward_through(largest.squeeze(-1), each.sum(-1))


def logaddexp(x: Tensor, other: Tensor) -> Tensor:
    """``torch.logaddexp`` without an overflow."""
    return torch.stack(torch.broadcast_tensors(x, other)).logsumexp(0)


def logaddexp2(x: Tensor, other: Tensor) -> Tensor:
    """``torch.logaddexp2``, the same to the base 2."""
    return logaddexp(x * math.log(2), other * math.log(2)) / math.log(2)


LAYERS: dict[Any, Callable[..., Any]] = {
    aten.scaled_dot_product_attention.default: attention,
    aten.embedding.default: embedding,
    aten.cdist.default: cdist,
    aten.logaddexp.default: logaddexp,
    aten.logaddexp2.default: logaddexp2,
}
NORMS = (
    aten.layer_norm.default,
    aten.group_norm.default,
    aten.batch_norm.default,
    aten.instance_norm.default,
    aten.rms_norm.default,
)
"""Of which each has its own form, or one that :func:`in_type_of_weight` makes."""
