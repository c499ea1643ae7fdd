"""A joint trace of the user's own module, in the place of the forward program made from it.

Autograd then runs what the program has lost: backwards of ``autograd.Function`` and hooks. Inputs
and their sizes, with the symbols of dynamic ones, are those of the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    TensorArgument,
)

from memplan.pytorch.checkpoints import marked_regions
from memplan.pytorch.places import calls_told
from memplan.pytorch.scopes import stacks_of
from memplan.pytorch.spelled import spelled
from memplan.pytorch.trace import STORED, Prepared

aten = torch.ops.aten
_CONSTANT = "memplan_constant"


class Live(nn.Module):
    """Takes what an exported program takes, and gives the loss by the user's own module."""

    def __init__(self, program: Any, prepared: Prepared) -> None:
        super().__init__()
        self._specs = tuple(program.graph_signature.input_specs)
        # In a tuple, so that its parameters are not ours: they are arguments.
        self._held = (prepared,)

    def forward(self, *flat: Any) -> tuple[Tensor]:
        """The loss."""
        (prepared,) = self._held
        given = list(zip(self._specs, flat, strict=True))
        state = {str(spec.target): value for spec, value in given if spec.kind in STORED}
        batch = [value for spec, value in given if spec.kind is InputKind.USER_INPUT]
        module = prepared.module
        with _kept(module), spelled(), marked_regions(), stacks_of(module), calls_told():
            put = _put(module, state)
            loss = module(dict(zip(prepared.batch, batch, strict=True)))
            _renew(module, put)
        return (loss,)


def _put(module: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """Let a module compute with other parameters and buffers, wherever it holds them; them by
    name."""
    own: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    own |= dict(module.named_buffers(remove_duplicate=False))
    put = {name: _with_hooks(value, own[name]) for name, value in state.items()}
    instead = {id(own[name]): value for name, value in put.items()}
    for each in module.modules():
        for held in (each._parameters, each._buffers):
            held.update({key: instead.get(id(value), value) for key, value in held.items()})
    return put


def _with_hooks(value: Any, own: Tensor) -> Any:
    """A parameter with the hooks of the user's: they see the sum of its gradients."""
    hooks = own._backward_hooks
    if not hooks or not value.requires_grad:
        return value
    copy = value.view_as(value)
    for hook in hooks.values():
        copy.register_hook(hook)
    return copy


def _renew(module: nn.Module, put: Mapping[str, Any]) -> None:
    """A buffer that was assigned anew is written over."""
    for name, value in put.items():
        path, _, own = name.rpartition(".")
        held = module.get_submodule(path)._buffers
        if own in held and held[own] is not value and held[own] is not None:
            with torch.no_grad():
                value.copy_(held[own])


@contextmanager
def _kept(module: nn.Module) -> Iterator[None]:
    """Parameters, buffers and attributes are afterwards what they were: a forward pass may keep
    tensors, which are of the trace."""
    before = [
        (held, dict(held))
        for each in module.modules()
        for held in (vars(each), each._parameters, each._buffers)
    ]
    try:
        yield
    finally:
        for held, values in before:
            held.clear()
            held.update(values)


@contextmanager
def traced_live(live: Live) -> Iterator[dict[str, Tensor]]:
    """Inside, the joint graph of a program is that of ``live``. Constants that its forward pass
    makes are operators without inputs, as :func:`lift` wants them; their values by name."""
    from torch._functorch import aot_autograd

    export = aot_autograd.aot_export_module
    values: dict[str, Tensor] = {}

    def exported(_module: Any, args: Any, **settings: Any) -> tuple[Any, Any]:
        graph, signature = export(live, args, **settings)
        values.update(_held_out(graph))
        return graph, signature

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(aot_autograd, "aot_export_module", exported))
        yield values


def _held_out(module: Any) -> dict[str, Tensor]:
    """Replace constants of a graph, which a program may not hold, in place."""
    values: dict[str, Tensor] = {}
    for node in list(module.graph.nodes):
        value = getattr(module, node.target, None) if node.op == "get_attr" else None
        if not isinstance(value, Tensor):
            continue
        name = f"live_{node.target}"
        values[name] = value
        with module.graph.inserting_before(node):
            stand = module.graph.call_function(aten.empty.memory_format, (list(value.shape),))
        stand.meta = {**node.meta, _CONSTANT: name}
        stand.meta.setdefault("val", value)
        node.replace_all_uses_with(stand)
        module.graph.erase_node(node)
    module.recompile()
    return values


def lift(program: Any, values: Mapping[str, Tensor]) -> None:
    """Let constants be inputs of a program in place, and drop those that it does not read."""
    graph, signature = program.graph_module.graph, program.graph_signature
    places = [node for node in graph.nodes if node.op == "placeholder"]
    specs: list[InputSpec] = []
    for node, spec in zip(places, signature.input_specs, strict=True):
        if spec.kind is InputKind.CONSTANT_TENSOR and not node.users:
            graph.erase_node(node)
        else:
            specs.append(spec)
    first = next(node for node in graph.nodes)
    lifted: dict[str, Any] = {}
    for node in [n for n in graph.nodes if _CONSTANT in n.meta]:
        name = node.meta[_CONSTANT]
        if name not in lifted:
            with graph.inserting_before(first):
                lifted[name] = graph.placeholder(name)
            lifted[name].meta = {"val": node.meta["val"]}
            program._constants[name] = values[name]
        node.replace_all_uses_with(lifted[name])
        graph.erase_node(node)
    made = [
        InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), name)
        for name, node in lifted.items()
    ]
    program._graph_signature = ExportGraphSignature([*made, *specs], list(signature.output_specs))
    program.graph_module.recompile()
