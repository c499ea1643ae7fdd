"""Operators of ATen that draw random numbers, by the few sources that ONNX has: uniform and normal
ones. The operator ``Multinomial`` draws with replacement alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from memplan.pytorch.surrogate_exports import backward_through

aten = torch.ops.aten


def native_dropout(x: Tensor, p: float, train: bool | None = True) -> Any:
    """Dropout; ONNX has none that drops everything."""
    return (x * 0.0, torch.zeros_like(x, dtype=torch.bool)) if p == 1 and train else NotImplemented


def rrelu(
    x: Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    generator: Any = None,
) -> Tensor:
    """``torch.nn.functional.rrelu``: below zero, a slope that is drawn for every element."""
    if not training:
        return functional.leaky_relu(x, (lower + upper) / 2)
    slopes = torch.rand_like(x) * (upper - lower) + lower
    return torch.where(x > 0, x, x * slopes)


def rrelu_with_noise(x: Tensor, noise: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    """The same in place; the slopes themselves are nobody's."""
    return rrelu(x, *options), noise


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


def randint_like(x: Tensor, *bounds: int, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    """``torch.randint_like``."""
    low, high = bounds if len(bounds) > 1 else (0, *bounds)
    return torch.randint(low, high, x.shape, dtype=dtype or x.dtype, device=x.device)


def normal(mean: Any, std: Any = 1.0, **_: Any) -> Tensor:
    """``torch.normal`` of tensors, through which no gradient comes."""
    like = mean + torch.zeros_like(std) if isinstance(std, Tensor) else mean
    return backward_through(mean + std * torch.randn_like(like))


def uniform(x: Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> Tensor:
    """``torch.Tensor.uniform_``."""
    return torch.rand_like(x) * (high - low) + low


RANDOM_FORMS: dict[Any, Callable[..., Any]] = {
    aten.native_dropout.default: native_dropout,
    aten.rrelu.default: rrelu,
    aten.rrelu_with_noise_functional.default: rrelu_with_noise,
    aten.multinomial.default: multinomial,
    aten.randperm.default: randperm,
    aten.randint_like.default: randint_like,
    aten.randint_like.low_dtype: randint_like,
    aten.normal.Tensor_float: normal,
    aten.normal.float_Tensor: normal,
    aten.normal.Tensor_Tensor: normal,
    aten.uniform.default: uniform,
}
