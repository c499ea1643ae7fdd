"""Backwards of the user's own: what changes gradients and stands in no forward graph.

An ``autograd.Function`` has a backward that need not be the derivative of its forward, and a hook
may return another gradient than it was given. PyTorch's forward graph holds neither.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn.modules import module as modules

from memplan.errors import ModelError
from memplan.pytorch.places import called_from, defined_at, is_users

_MACHINERY = (
    "torch._functorch.",
    "torch._higher_order_ops.",
    "torch._dynamo.",
    "torch._library.",
    "torch.nn.modules._functions",
    "torch.utils._",
    "torch.utils.checkpoint",
)
"""Whose ``autograd.Function`` is a part of a trace, a hook that is found by itself, or a mark."""
_BY_JOINT = "take autograd's own backward, which runs it: --via joint (or auto)"
_LEAF = "post-accumulate-grad hook"


@dataclass(frozen=True, slots=True)
class CustomBackward:
    """Something that changes gradients: what it is, its name, and where it is applied."""

    kind: str
    name: str
    place: str

    def __str__(self) -> str:
        where = f" ({self.place})" if self.place else ""
        return f"{self.kind} '{self.name}'{where}"


def require_plain(found: tuple[CustomBackward, ...]) -> None:
    """Check that a forward graph tells all about the gradients of a step.

    Raises:
        ModelError: something changes them.
    """
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise ModelError(
            f"gradients pass through the {found[0]}{more}, which the forward graph does not hold",
            _BY_JOINT if all(each.kind != _LEAF for each in found) else _hint(found),
        )


def require_traceable(found: tuple[CustomBackward, ...]) -> None:
    """Check that autograd's own backward runs all that changes gradients.

    Raises:
        ModelError: something runs behind it.
    """
    late = tuple(each for each in found if each.kind == _LEAF)
    if late:
        raise ModelError(f"the {late[0]} acts after the backward pass", _hint(late))


def _hint(found: tuple[CustomBackward, ...]) -> str:
    return (
        "remove it before the capture; what it does to gradients belongs into a tensor hook, what "
        "it does to parameters into the optimizer"
    )


@contextmanager
def noted(model: nn.Module) -> Iterator[list[CustomBackward]]:
    """Inside, every backward of the user's own that is called upon is added to a list, which begins
    with the hooks that the model has."""
    found: dict[CustomBackward, None] = dict.fromkeys(_hooks_of(model))
    listed = list(found)

    def note(kind: str, name: str) -> None:
        each = CustomBackward(kind, name, called_from())
        if each not in listed:
            listed.append(each)

    with ExitStack() as stack:
        for target, name, own in _watched(note):
            stack.enter_context(mock.patch.object(target, name, own))
        yield listed


def _watched(note: Any) -> list[tuple[Any, str, Any]]:
    """What is replaced while a step is traced: place, name and what it is replaced by."""
    function: Any = torch.autograd.Function
    apply = inspect.getattr_static(function, "apply")  # Python's class method; from 2.14 on, C's

    def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        active = torch.is_grad_enabled() and any(
            isinstance(each, Tensor) and each.requires_grad for each in given
        )
        if active and not cls.__module__.startswith(_MACHINERY):
            note("autograd.Function", cls.__qualname__.rpartition("<locals>.")[2])
        return apply.__get__(None, cls)(*args, **kwargs)

    def hooked(method: Any, kind: str) -> Any:
        @wraps(method)
        def registered(self: Any, hook: Any) -> Any:
            note(kind, _name(hook))
            return method(self, hook)

        return registered

    enter = saved_tensors_hooks.__enter__

    def entered(self: Any) -> Any:
        if not isinstance(self, save_on_cpu):
            note("saved-tensor hook", _name(self.unpack_hook))
        return enter(self)

    def node(self: Any) -> Any:
        held = torch._C.TensorBase.grad_fn.__get__(self)
        if held is not None and is_users(sys._getframe(1).f_code.co_filename):
            note("autograd node", type(held).__name__)  # whose hooks are not Python's to see
        return held

    take = torch.autograd.grad

    def taken(*args: Any, **kwargs: Any) -> Any:
        if is_users(sys._getframe(1).f_code.co_filename):
            raise NotImplementedError("the step takes a gradient by itself (torch.autograd.grad)")
        return take(*args, **kwargs)

    late = Tensor.register_post_accumulate_grad_hook
    return [
        (function, "apply", classmethod(applied)),
        (Tensor, "register_hook", hooked(Tensor.register_hook, "tensor hook")),
        (Tensor, "register_post_accumulate_grad_hook", hooked(late, _LEAF)),
        (Tensor, "grad_fn", property(node)),
        (saved_tensors_hooks, "__enter__", entered),
        (torch.autograd, "grad", taken),
    ]


def _hooks_of(model: nn.Module) -> Iterator[CustomBackward]:
    """The hooks on gradients that are there before a step runs."""
    everywhere = (modules._global_backward_pre_hooks, modules._global_backward_hooks)
    for hooks in everywhere:
        for hook in hooks.values():
            yield CustomBackward("global module hook", _name(hook), defined_at(hook))
    for name, each in model.named_modules():
        for hooks in (each._backward_pre_hooks, each._backward_hooks):
            for hook in hooks.values():
                yield CustomBackward("module hook", _on(hook, name), defined_at(hook))
    for name, parameter in model.named_parameters():
        for hook in (parameter._backward_hooks or {}).values():
            yield CustomBackward("parameter hook", _on(hook, name), defined_at(hook))
        for hook in (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values():
            yield CustomBackward(_LEAF, _on(hook, name), defined_at(hook))


def _on(hook: Any, name: str) -> str:
    name = name.removeprefix("model").removeprefix(".")
    return f"{_name(hook)} on {name}" if name else _name(hook)


def _name(hook: Any) -> str:
    name = getattr(hook, "__qualname__", None) or type(hook).__qualname__
    return str(name).rpartition("<locals>.")[2]
