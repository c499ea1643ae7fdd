"""Torch's joint graph without its tangents, by an edit instead of a second trace.

AOTAutograd gives a graph of inputs and tangents, whose results are nested. To drop the tangents,
which a scalar loss does not need, ``aot_export_module`` traces the graph once more with
``make_fx``, which takes as long as the trace before.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.fx.graph import CodeGen

_PLACE = "torch._functorch.aot_autograd.make_fx"


@contextmanager
def traced_once() -> Iterator[None]:
    """Inside, ``aot_export_module`` gives the graph that it has traced. What is not of the form
    that is known here is traced again, as torch does it."""
    from torch._functorch import aot_autograd

    trace = aot_autograd.make_fx

    def made(function: Callable[..., Any], *settings: Any, **options: Any) -> Callable[..., Any]:
        again = trace(function, *settings, **options)

        def graph_of(*args: Any) -> Any:
            joint = inspect.getclosurevars(function).nonlocals.get("fx_g")
            if isinstance(joint, torch.fx.GraphModule) and _flatten(joint, args):
                return joint
            return again(*args)

        return graph_of

    with mock.patch(_PLACE, made):
        yield


def _flatten(joint: torch.fx.GraphModule, args: Sequence[Any]) -> bool:
    """Let a joint graph take ``args`` and give its results one behind the other, each gradient
    for an argument that requires one, in place; False where that is not possible.

    Raises:
        NotImplementedError: an operator has an effect, which would have to be ordered.
    """
    graph = joint.graph
    given = [node for node in graph.nodes if node.op == "placeholder"]
    tangents = given[len(args) :]
    ends = graph.output_node()
    results = list(ends.args[0])
    forward, gradients = results[: -len(args)], results[-len(args) :]
    for node in graph.nodes:
        if node.target is torch.ops.higher_order.with_effects:
            raise NotImplementedError(f"{node.args[1]} has an effect beside its result")
    wanted = [isinstance(a, torch.Tensor) and a.requires_grad for a in args]
    found = [gradient is not None for gradient in gradients]
    if found != wanted or any(node.users for node in tangents):
        return False
    for node in tangents:
        graph.erase_node(node)
    ends.args = ((*forward, *(g for g in gradients if g is not None)),)
    graph.set_codegen(CodeGen())
    vars(joint).pop("forward", None)  # that of modules_kept, for a second trace
    joint.recompile()
    return True
