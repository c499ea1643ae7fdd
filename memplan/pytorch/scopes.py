"""Which module of the model operators belong to, those of autograd's own backward among them.

Every operator tells the module that it was run in, a backward operator that of the forward operator
it differentiates: torch finds that by ``seq_nr``, autograd's number of the latter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.fx import GraphModule, traceback

_STACK = "nn_module_stack"
_FORWARD_STACK = "fwd_nn_module_stack"


@contextmanager
def stacks_of(root: nn.Module) -> Iterator[None]:
    """Inside, operators that are traced tell the modules under ``root`` that they are run in, as
    those of an exported program do."""
    names = {id(module): name for name, module in root.named_modules()}
    before = Counter[str]()
    call = nn.Module.__call__

    def called(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        # Bodies of torch.cond and loops are compiled, which notes modules itself.
        name = None if torch.compiler.is_dynamo_compiling() else names.get(id(self))
        if name is None:
            return call(self, *args, **kwargs)
        meta = traceback.current_meta
        outer = meta.get(_STACK)
        kind = f"{type(self).__module__}.{type(self).__qualname__}"
        again = f"@{before[name]}" if before[name] else ""  # as torch tells a second call
        before[name] += 1
        meta[_STACK] = {**(outer or {}), f"L__self__{name}{again}": (name, kind)}
        try:
            return call(self, *args, **kwargs)
        finally:
            if outer is None:
                meta.pop(_STACK, None)
            else:
                meta[_STACK] = outer

    with mock.patch.object(nn.Module, "__call__", called):
        yield


def label_backward(module: GraphModule) -> None:
    """Let the backward operators of a joint graph tell a module, too."""
    last = None
    for node in module.graph.nodes:
        if node.meta.get("partitioner_tag") == "is_backward":
            # Sums of gradients belong to no operator, and are made behind the last summand.
            last = node.meta[_STACK] = node.meta.get(_FORWARD_STACK) or last
