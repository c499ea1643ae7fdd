"""Attention written out, so that both roads have the same few operators."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


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
        scores = torch.where(attn_mask, scores, torch.finfo(scores.dtype).min)
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
