"""Which of equal elements PyTorch's own step takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from memplan.pytorch.torch_internals import internal

aten = torch.ops.aten
_Mode: Any = internal("torch.utils._python_dispatch.TorchDispatchMode")


def _top(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    found = aten.sort.stable(x, stable=True, dim=dim, descending=largest)
    return tuple(each.narrow(dim, 0, k) for each in found)


def _kth(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    found = aten.sort.stable(x, stable=True, dim=dim, descending=False)
    picked = (each.narrow(dim, k - 1, 1) for each in found)
    return tuple(each if keepdim else each.squeeze(dim) for each in picked)


def _middle(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    return _kth(x, (x.shape[dim] + 1) // 2, dim, keepdim)


def _sorted(x: Tensor, dim: int = -1, descending: bool = False) -> Any:
    return aten.sort.stable(x, stable=True, dim=dim, descending=descending)


_FIRST: dict[Any, Callable[..., Any]] = {
    aten.topk.default: _top,
    aten.kthvalue.default: _kth,
    aten.median.dim: _middle,
    aten.sort.default: _sorted,
}
"""Operators for which PyTorch does not specify which of equal elements they take, taking those with
the lowest indices, as ONNX does."""


class FirstOfEquals(_Mode):
    """Inside, these operators take the equal elements with the lowest indices; ``met`` names those
    for which that is another choice."""

    def __init__(self) -> None:
        super().__init__()
        self.met: dict[str, None] = {}

    @property
    def text(self) -> str:
        """What a report says of them."""
        return (
            f"which of equal elements {' and '.join(self.met)} takes: PyTorch does not specify it, "
            "the graph takes those with the lowest indices"
        )

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """See the class."""
        own = func(*args, **(kwargs or {}))
        if func not in _FIRST or args[0].dim() == 0:
            return own
        chosen = _FIRST[func](*args, **(kwargs or {}))
        if torch.equal(own[1], chosen[1]) or not torch.equal(own[0], chosen[0]):
            return own
        self.met[func.overloadpacket.__name__] = None
        return chosen
