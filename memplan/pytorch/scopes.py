"""Which module of the model the operators of autograd's own backward belong to.

Torch traces a joint graph twice. The first time every operator tells the module that it was run in,
and a backward operator that of the forward operator it differentiates (by ``seq_nr``, autograd's
number of the latter); the second time, which only flattens inputs and outputs, this is lost. Mostly
:mod:`memplan.pytorch.retrace` saves it; where it does not, the graph of the first time is
interpreted in the second, and its nodes hand on what they tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

from torch import nn
from torch.fx import Interpreter, traceback
from torch.fx.traceback import preserve_node_meta

_STACK = "nn_module_stack"
_FORWARD_STACK = "fwd_nn_module_stack"


@contextmanager
def modules_kept() -> Iterator[None]:
    """Inside, nodes of the joint graphs that torch exports tell their modules."""
    from torch._functorch import aot_autograd

    export = aot_autograd._aot_export_function

    def exported(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        graph, *rest = export(*args, **kwargs)
        _label(graph)
        graph.forward = partial(_interpreted, Interpreter(graph))
        return graph, *rest

    with mock.patch.object(aot_autograd, "_aot_export_function", exported):
        yield


@contextmanager
def stacks_of(root: nn.Module) -> Iterator[None]:
    """Inside, operators that are traced tell the modules under ``root`` that they are run in, as
    those of an exported program do."""
    names = {id(module): name for name, module in root.named_modules()}
    call = nn.Module.__call__

    def called(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        name = names.get(id(self))
        if name is None:
            return call(self, *args, **kwargs)
        meta = traceback.current_meta
        outer = meta.get(_STACK)
        kind = f"{type(self).__module__}.{type(self).__qualname__}"
        meta[_STACK] = {**(outer or {}), f"L__self__{name}": (name, kind)}
        try:
            return call(self, *args, **kwargs)
        finally:
            if outer is None:
                meta.pop(_STACK, None)
            else:
                meta[_STACK] = outer

    with mock.patch.object(nn.Module, "__call__", called):
        yield


def _label(module: Any) -> None:
    """Let the backward operators of a joint graph tell a module, too."""
    last = None
    for node in module.graph.nodes:
        if node.meta.get("partitioner_tag") == "is_backward":
            # Sums of gradients belong to no operator, and are made behind the last summand.
            last = node.meta[_STACK] = node.meta.get(_FORWARD_STACK) or last


def _interpreted(interpreter: Interpreter, *args: Any) -> Any:
    """Run a graph node by node, under the metadata of each."""
    with preserve_node_meta():
        return interpreter.run(*args)
