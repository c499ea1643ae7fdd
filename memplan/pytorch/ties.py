"""PyTorch's choice where a derivative does not exist.

memplan's rules differentiate the forward graph, and each has one convention for ties and kinks.
Where PyTorch's is another, the function is written here in operators whose rules have it: ``Where``
gives all to the side that was chosen, ``Max`` shares evenly. PyTorch changes its mind from version
to version (2.14 did about ``clamp``), so the one that is installed is asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

aten = torch.ops.aten
_Bound: TypeAlias = Tensor | float | None


@dataclass(frozen=True, slots=True)
class Shares:
    """What ``x`` gets of the gradient where it equals what it is held against.

    ``at_bound``: a number that is a bound of ``clamp``; ``at_tensor``: a tensor that is one;
    ``of_fmax``: the other side of ``fmax``.
    """

    at_bound: float
    at_tensor: float
    of_fmax: float


@cache
def installed_shares() -> Shares:
    """What the installed PyTorch gives."""
    one = torch.ones(1, device="cpu")
    return Shares(
        _slope(lambda x: x.clamp(min=1.0)),
        _slope(lambda x: x.clamp(min=one)),
        _slope(lambda x: torch.fmax(x, one)),
    )


def _slope(function: Callable[[Tensor], Tensor]) -> float:
    """The derivative at 1 that PyTorch gives."""
    with torch.inference_mode(False), torch.enable_grad():
        x = torch.ones(1, device="cpu", requires_grad=True)
        return float(torch.autograd.grad(function(x).sum(), x)[0])


def tie_table(shares: Shares) -> dict[Any, Callable[..., Any]]:
    """Decompositions for a forward graph that memplan differentiates."""
    by_tensors = partial(_between, whole=shares.at_tensor == 1)
    larger = partial(_fmax, whole=shares.of_fmax == 1)
    table: dict[Any, Callable[..., Any]] = {
        aten.max.dim: partial(_extreme, "argmax"),
        aten.min.dim: partial(_extreme, "argmin"),
        aten.clamp.Tensor: by_tensors,
        aten.clamp_min.Tensor: by_tensors,
        aten.clamp_max.Tensor: lambda x, high: by_tensors(x, None, high),
        aten.fmax.default: larger,
        aten.fmin.default: lambda a, b: -larger(-a, -b),
        aten.linalg_vector_norm.default: vector_norm,
        aten.atan2.default: atan2,
        aten.sinc.default: sinc,
        aten.xlogy.Tensor: xlogy,
    }
    if shares.at_bound > 0:  # the rule of Clip gives 0
        table[aten.clamp.default] = _clamp
        table[aten.clamp_min.default] = _clamp
        table[aten.clamp_max.default] = lambda x, high: _clamp(x, None, high)
    return table


def clamp(x: Tensor, low: float | None = None, high: float | None = None) -> Any:
    """``torch.clamp`` by bounds of one type: of an integer and a float, the exporter makes a call
    that fails."""
    if x.is_floating_point():
        if not any(isinstance(bound, int) for bound in (low, high)):
            return NotImplemented
    elif any(isinstance(bound, float) for bound in (low, high)):
        x = x.to(torch.get_default_dtype())
    else:
        return NotImplemented
    low, high = (float(bound) if isinstance(bound, int) else bound for bound in (low, high))
    return x.clamp(low, high)


def _clamp(x: Tensor, low: _Bound = None, high: _Bound = None) -> Any:
    """The same where the bounds themselves count as inside."""
    if not x.is_floating_point():
        return clamp(x, low, high)
    y = x if low is None else torch.where(x < low, low, x)
    return y if high is None else torch.where(y > high, high, y)


def _between(
    x: Tensor, low: Tensor | None = None, high: Tensor | None = None, *, whole: bool
) -> Any:
    """``torch.clamp`` by tensors, which may be learnt: at a bound ``x`` has the whole gradient, or
    half of it."""
    kinds = {bound.dtype for bound in (low, high) if bound is not None}
    if not x.is_floating_point() or kinds != {x.dtype}:
        return NotImplemented
    if whole:
        return _clamp(x, low, high)
    y = x if low is None else torch.maximum(x, low)
    return y if high is None else torch.minimum(y, high)


def _fmax(a: Tensor, b: Tensor, *, whole: bool) -> Any:
    """``torch.fmax``: the larger of two numbers, or the one that is a number."""
    if not a.is_floating_point() or a.dtype != b.dtype:
        return NotImplemented
    if whole:
        return torch.where((a >= b) | b.isnan(), a, b)
    return torch.where(a.isnan(), b, torch.where(b.isnan(), a, torch.maximum(a, b)))


def _extreme(place: str, x: Tensor, dim: int, keepdim: bool = False) -> Any:
    """``max`` or ``min`` along a dimension, whose gradient goes to the element that it names."""
    if not x.is_floating_point() or not x.dim():
        return NotImplemented
    places = getattr(x, place)(dim, keepdim=True)
    values = x.gather(dim, places)
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


def vector_norm(
    x: Tensor,
    order: float = 2,
    dim: list[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    """``torch.linalg.vector_norm``; the gradient of a norm of zeros is zero, whatever the order."""
    if order in (1, 2) or order <= 0 or math.isinf(order) or not x.is_floating_point():
        return NotImplemented
    x = x if dtype is None else x.to(dtype)
    axes = list(range(x.dim())) if dim is None else dim
    nothing = x == 0
    powers = torch.where(nothing, 0.0, torch.where(nothing, 1.0, x).abs() ** order)
    total = powers.sum(axes, keepdim=keepdim)
    return torch.where(total == 0, 0.0, torch.where(total == 0, 1.0, total) ** (1 / order))


def atan2(y: Tensor, x: Tensor) -> Tensor:
    """``torch.atan2`` by the smaller quotient, which neither overflows nor divides by 0."""
    steep = y.abs() > x.abs()
    below = torch.where(steep, y, torch.where(x == 0, 1.0, x))
    angle = torch.atan(torch.where(steep, -x, y) / below)
    turned = torch.where(y.signbit(), -math.pi, math.pi)
    flat = torch.where(x < 0, turned, 0.0)
    return angle + torch.where(steep, turned / 2, flat).to(angle.dtype)


def sinc(x: Tensor) -> Tensor:
    """``torch.sinc``, whose gradient at 0 is 0."""
    angle = torch.where(x == 0, 1.0, x) * math.pi
    return torch.where(x == 0, 1.0, angle.sin() / angle)


def xlogy(x: Tensor, y: Tensor) -> Any:
    """``torch.xlogy``: 0 where x is 0, even where the logarithm is infinite."""
    if not x.is_floating_point() or not y.is_floating_point():
        return NotImplemented
    nothing = (x == 0) & (y <= 0)
    return torch.where(nothing, 0.0, x * torch.where(nothing, 1.0, y).log())


def stable_sort(
    x: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    """As ONNX sorts: the lower index of equals first."""
    found: tuple[Tensor, Tensor] = aten.sort.default(x, dim, descending)
    return found
