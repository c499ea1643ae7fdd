"""Ways to switch gradients off that torch.export does not see, said in ways that it does.

``.data`` is ``detach()`` in reading, and in writing ``copy_`` without gradients;
``torch.inference_mode`` is ``no_grad``; a parameter for which ``requires_grad_(False)`` is called
in the middle of a step hands on no gradient until that is taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.autograd.grad_mode import inference_mode

from memplan.errors import UsageError
from memplan.pytorch.surrogate_exports import backward_through
from memplan.pytorch.torch_internals import internal

_KEPT = "_memplan_mode"
_pytree: Any = internal("torch.utils._pytree")


class Frozen:
    """Which tensors were told to require no gradient, while a step is traced."""

    def __init__(self) -> None:
        self.tensors: dict[int, Tensor] = {}

    def stopped(self, function: Any, values: Any) -> Any:
        """Arguments of a function, where what is frozen hands on no gradient."""
        if not self.tensors or getattr(function, "__name__", "") in ("__get__", "__set__"):
            return values

        def stop(value: Any) -> Any:
            held = isinstance(value, Tensor) and id(value) in self.tensors
            return backward_through(value) if held else value

        return _pytree.tree_map(stop, values)

    def require(self, tensor: Tensor, wanted: bool = True) -> Tensor:
        """``Tensor.requires_grad_``.

        Raises:
            UsageError: a parameter that is frozen from outside is to be trained.
        """
        if not wanted and tensor.requires_grad:
            self.tensors[id(tensor)] = tensor
        elif wanted and id(tensor) in self.tensors:
            del self.tensors[id(tensor)]
        elif wanted and isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad:
            raise UsageError(
                "the step calls requires_grad_(True) for a parameter that does not require a "
                "gradient when it is captured",
                "call it before capture",
            )
        return tensor

    def functions(self) -> Mapping[Any, Callable[..., Any]]:
        """What replaces attributes and methods of tensors."""
        return {
            Tensor.data.__get__: lambda tensor, *_: tensor.detach(),
            Tensor.data.__set__: _overwrite,
            Tensor.requires_grad_: self.require,
            Tensor.requires_grad.__set__: self.require,
        }


def _overwrite(tensor: Tensor, value: Tensor) -> None:
    """``tensor.data = value``.

    Raises:
        UsageError: the tensor would have another shape or type.
    """
    if tensor.shape != value.shape or tensor.dtype != value.dtype:
        raise UsageError(
            "the step gives a tensor another shape or type through .data",
            "compute a new tensor instead",
        )
    with torch.no_grad():
        tensor.copy_(value)


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
