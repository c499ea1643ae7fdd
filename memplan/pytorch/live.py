"""The user's own module as a function of its parameters, buffers and batch.

Autograd runs over it, not over the program that torch exported: that has lost the backwards of
``autograd.Function`` and hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.export.graph_signature import InputKind, InputSpec
from torch.utils._pytree import tree_leaves

from memplan.pytorch.hidden_state import HiddenState
from memplan.pytorch.places import calls_told
from memplan.pytorch.prepared_step import PreparedStep
from memplan.pytorch.scopes import stacks_of
from memplan.pytorch.spelled import spelled
from memplan.pytorch.torch_checkpoints import marked_regions
from memplan.pytorch.torch_errors import nothing_trained
from memplan.pytorch.trace import STORED


def live(
    prepared: PreparedStep, specs: Sequence[InputSpec], state: HiddenState
) -> Callable[..., tuple[Tensor, ...]]:
    """A function of what ``specs`` describe, which gives the loss and what stands beside it; every
    call finds ``state`` in Python."""
    module = prepared.module

    def computed(*flat: Any) -> tuple[Tensor, ...]:
        given = list(zip(specs, flat, strict=True))
        values = {str(spec.target): value for spec, value in given if spec.kind in STORED}
        batch = [value for spec, value in given if spec.kind is InputKind.USER_INPUT]
        try:
            with spelled(), marked_regions(), stacks_of(module), calls_told():
                _put(module, values)
                loss, *metrics = tree_leaves(module(dict(zip(prepared.batch, batch, strict=True))))
        finally:  # a forward pass may keep tensors, which are of the trace
            state.put_back(tensors=False)
        if not loss.requires_grad:
            raise nothing_trained()
        return (loss, *metrics)

    return computed


def _put(module: nn.Module, state: Mapping[str, Any]) -> None:
    """Let a module compute with other parameters and buffers, wherever it holds them."""
    own: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    own |= dict(module.named_buffers(remove_duplicate=False))
    instead = {id(own[name]): _with_hooks(value, own[name]) for name, value in state.items()}
    for each in module.modules():
        for held in (each._parameters, each._buffers):
            held.update({key: instead.get(id(value), value) for key, value in held.items()})


def _with_hooks(value: Any, own: Tensor) -> Any:
    """A parameter with the hooks of the user's: they see the sum of its gradients."""
    hooks = own._backward_hooks
    if not hooks or not value.requires_grad:
        return value
    copy = value.view_as(value)
    for hook in hooks.values():
        copy.register_hook(hook)
    return copy
