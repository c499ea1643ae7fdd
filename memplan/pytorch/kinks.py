"""Where PyTorch's own step jumps, and which of equal elements it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from memplan.pytorch.torch_internals import internal

aten = torch.ops.aten
_Mode: Any = internal("torch.utils._python_dispatch.TorchDispatchMode")
_pytree: Any = internal("torch.utils._pytree")
_NEAR = 1e-7
"""Two sums of float64 that differ by less, relative to the sum of magnitudes, are one."""


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
        self.met[_name(func)] = None
        return chosen


class OperatorTrace(_Mode):
    """Inside, every operator that runs is noted, with sums over what it is given and gives."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, list[_Sums], list[_Sums]]] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """See the class."""
        given = _sums((args, kwargs))
        result = func(*args, **(kwargs or {}))
        self.calls.append((_name(func), given, _sums(result)))
        return result


_Sums = tuple[bool, float, float]
"""Whether a tensor is one of floats, the sum of its magnitudes, and one with weights."""


def _sums(values: Any) -> list[_Sums]:
    found = []
    for tensor in _pytree.tree_leaves(values):
        if isinstance(tensor, Tensor) and tensor.layout is torch.strided:
            flat = tensor.detach().reshape(-1).to(torch.float64).nan_to_num(0.0, 1.0, -1.0)
            weights = torch.arange(flat.numel(), dtype=torch.float64, device=flat.device).cos()
            entry = tensor.is_floating_point(), float(flat.abs().sum()), float(flat @ weights)
            found.append(entry)
    return found


def jumping(one: OperatorTrace, other: OperatorTrace) -> list[str]:
    """The operators that were given the same twice, but for rounding, and gave something else."""
    names: dict[str, None] = {}
    for (name, given, made), (same, given_too, made_too) in zip(
        one.calls, other.calls, strict=False
    ):
        if name != same:
            break
        if _alike(given, given_too) and not _alike(made, made_too):
            names[name] = None
    return list(names)


def _alike(some: Sequence[_Sums], others: Sequence[_Sums]) -> bool:
    for (floats, size, total), (_, _, total_too) in zip(some, others, strict=True):
        if abs(total - total_too) > (_NEAR * size if floats else 0.0):
            return False
    return True


def _name(func: Any) -> str:
    name: str = func._schema.name
    return name.partition("::")[2].removesuffix("_backward")
