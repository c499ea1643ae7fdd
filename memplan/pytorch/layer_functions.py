"""Layers of PyTorch written out, whose gradient or sizes are not those of their ONNX form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from memplan.errors import ModelError
from memplan.pytorch.pool_rules import each, pixels
from memplan.pytorch.surrogate_exports import backward_through

_embedding = functional.embedding
_pairwise_distance = functional.pairwise_distance
_BY_PAIR = 25
"""Points of either side up to which PyTorch takes differences of pairs."""
Sizes = Sequence[int]


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """``torch.nn.functional.embedding``: rows of a table. The row at ``padding_idx`` gets no
    gradient; with ``scale_grad_by_freq`` that of a row is divided by how often it was read.

    Raises:
        ModelError: the norm of rows is limited.
    """
    if max_norm is not None:
        raise ModelError(
            "embedding with max_norm changes its weights in the forward part, and they are trained",
            "limit the norm in the step's loss, or after the update, instead",
        )
    rows = surrogate = _embedding(input, weight)
    if scale_grad_by_freq:
        ones = torch.ones_like(input, dtype=weight.dtype)
        counts = weight.new_zeros([weight.shape[0]]).index_add(0, input.flatten(), ones.flatten())
        surrogate = surrogate / counts[input].unsqueeze(-1)
    if padding_idx is not None:
        padded = input == padding_idx % weight.shape[0]
        surrogate = torch.where(padded.unsqueeze(-1), 0.0, surrogate)
    return rows if surrogate is rows else backward_through(rows, surrogate)


def average(pool: Callable[..., Tensor], rank: int) -> Callable[..., Tensor]:
    """``avg_pool1d`` and its like. The exporter leaves the divisor away, and ONNX counts windows
    that begin beyond the image: these cases are a sum, divided."""

    def pooled(
        input: Tensor,
        kernel_size: int | Sizes,
        stride: int | Sizes | None = None,
        padding: int | Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        kernel, padding = each(kernel_size, rank), each(padding, rank)
        stride = each(stride, rank) if stride else kernel
        sizes = input.shape[-rank:]
        windows = list(zip(sizes, kernel, stride, padding, strict=True))
        if divisor_override is None and not (ceil_mode and any(map(_has_one_behind, windows))):
            return pool(input, kernel, stride, padding, ceil_mode, count_include_pad)
        around = _around(windows, ceil_mode)
        total = pool(functional.pad(input, around), kernel, stride) * math.prod(kernel)
        if divisor_override is not None:
            return total / divisor_override
        shares = torch.ones([], dtype=input.dtype, device=input.device)
        for window in windows:
            count = _windows(*window, ceil_mode)
            shares = shares.unsqueeze(-1) * pixels(count, window, count_include_pad, input)
        return total / shares

    return pooled


def maximum(pool: Callable[..., Tensor], rank: int) -> Callable[..., Tensor]:
    """``torch.max_pool1d`` and its like, where rounding up makes a further window."""

    def pooled(
        input: Tensor,
        kernel_size: int | Sizes,
        stride: int | Sizes | None = None,
        padding: int | Sizes = 0,
        dilation: int | Sizes = 1,
        ceil_mode: bool = False,
    ) -> Tensor:
        kernel, padding, apart = (each(v, rank) for v in (kernel_size, padding, dilation))
        stride = each(stride, rank) if stride else kernel
        extents = [step * (size - 1) + 1 for size, step in zip(kernel, apart, strict=True)]
        windows = list(zip(input.shape[-rank:], extents, stride, padding, strict=True))
        if not (ceil_mode and any(map(_has_one_behind, windows))):
            return pool(input, kernel, stride, padding, apart, ceil_mode)
        around = _around(windows, ceil_mode)
        return pool(functional.pad(input, around, value=-math.inf), kernel, stride, 0, apart)

    return pooled


def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """``torch.nn.functional.pairwise_distance``."""
    if p in (1, 2):
        return _pairwise_distance(x1, x2, p, eps, keepdim)
    return torch.linalg.vector_norm(x1 - x2 + eps, p, -1, keepdim)


def cdist(
    x1: Tensor,
    x2: Tensor,
    p: float = 2.0,
    compute_mode: str = "use_mm_for_euclid_dist_if_necessary",
) -> Tensor:
    """``torch.cdist``: by a matrix product where PyTorch takes one, otherwise pair by pair."""
    large = x1.shape[-2] > _BY_PAIR or x2.shape[-2] > _BY_PAIR
    if_necessary = compute_mode.endswith("if_necessary") and large
    if p != 2 or not (if_necessary or compute_mode == "use_mm_for_euclid_dist"):
        return _distance(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)
    squares = x1.square().sum(-1, keepdim=True) + x2.square().sum(-1).unsqueeze(-2)
    apart = squares - 2 * (x1 @ x2.transpose(-2, -1))
    near = apart <= 0
    return torch.where(near, 0.0, torch.where(near, 1.0, apart).sqrt())


def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """``torch.pdist``: the distances of all pairs of rows."""
    count = input.shape[0]
    first, second = torch.triu_indices(count, count, 1, device=input.device).unbind(0)
    return _distance(input.index_select(0, first) - input.index_select(0, second), p)


def _distance(apart: Tensor, p: float) -> Tensor:
    """The norm of the last axis. By the largest element, every one that is largest has all of the
    gradient: those of PyTorch's distances do, where its norms share it."""
    if p != math.inf:
        return torch.linalg.vector_norm(apart, p, -1)
    sizes = apart.abs()
    largest = sizes.detach().amax(-1, keepdim=True)
    each = torch.where(sizes == largest, sizes, 0.0)
    return largest.squeeze(-1) + (each - each.detach()).sum(-1)


def logaddexp(input: Tensor, other: Tensor) -> Tensor:
    """``torch.logaddexp`` without an overflow."""
    return torch.stack(torch.broadcast_tensors(input, other)).logsumexp(0)


def logaddexp2(input: Tensor, other: Tensor) -> Tensor:
    """``torch.logaddexp2``, the same to the base 2."""
    return logaddexp(input * math.log(2), other * math.log(2)) / math.log(2)


def _around(windows: Sequence[Sizes], ceil_mode: bool) -> list[int]:
    """How much is put around an image, last axis first, so that every window lies in it."""
    found: list[int] = []
    for size, extent, step, pad in reversed(windows):
        count = _windows(size, extent, step, pad, ceil_mode)
        found += [pad, pad + max(0, (count - 1) * step + extent - size - 2 * pad)]
    return found


def _has_one_behind(window: Sizes) -> bool:
    """Whether rounding up alone would let a window of an axis begin behind the image."""
    size, extent, step, pad = window
    rounded = (size + 2 * pad - extent + step - 1) // step + 1
    return _windows(size, extent, step, pad, ceil_mode=True) < rounded


def _windows(size: int, extent: int, step: int, pad: int, ceil_mode: bool) -> int:
    """How many windows there are on an axis; none begins behind the image."""
    room = size + 2 * pad - extent
    if not ceil_mode:
        return room // step + 1
    count = (room + step - 1) // step + 1
    return count - 1 if (count - 1) * step >= size + pad else count


SPELLED: dict[Any, Callable[..., Any]] = {
    functional.embedding: embedding,
    functional.pairwise_distance: pairwise_distance,
    functional.avg_pool1d: average(functional.avg_pool1d, 1),
    functional.avg_pool2d: average(functional.avg_pool2d, 2),
    functional.avg_pool3d: average(functional.avg_pool3d, 3),
}
"""Functions that PyTorch's own modules call by name."""
NAMED: dict[Any, Callable[..., Any]] = {
    torch.max_pool1d: maximum(torch.max_pool1d, 1),
    torch.max_pool2d: maximum(torch.max_pool2d, 2),
    torch.max_pool3d: maximum(torch.max_pool3d, 3),
}
"""Those that they call by name in ``torch``."""
CALLED: dict[Any, Callable[..., Any]] = {
    **NAMED,
    torch.cdist: cdist,
    torch.pdist: pdist,
    **dict.fromkeys((torch.logaddexp, Tensor.logaddexp), logaddexp),
    **dict.fromkeys((torch.logaddexp2, Tensor.logaddexp2), logaddexp2),
}
"""Functions that a step calls, or a module that it calls."""
