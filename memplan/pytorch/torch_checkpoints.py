"""``torch.utils.checkpoint`` in a model: a mark, where PyTorch would recompute.

A plan decides what is recomputed. So the regions run once while they are traced, and the tensors
that enter and leave them, which PyTorch would keep, are marked (``memplan.checkpoint``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.fx.traceback import annotate, preserve_node_meta

from memplan.pytorch.torch_internals import internal, replaced

_KEY = "memplan_checkpoint"
_MODULE = "torch.utils.checkpoint"
_GENERATORS = (
    f"{_MODULE}._checkpoint_without_reentrant_generator_impl",
    f"{_MODULE}._checkpoint_without_reentrant_generator",
)
"""What ``checkpoint`` calls: the first where there is one."""


@contextmanager
def marked_regions() -> Iterator[None]:
    """Inside, checkpointed functions run as if they were not, and their nodes say so."""
    numbers = count(1)

    def generator(function: Any, *_args: Any, **_kwargs: Any) -> Iterator[None]:
        # PyTorch calls the function between the two halves of this generator.
        with annotate({_KEY: next(numbers)}):
            yield

    class Reentrant:
        """In the place of ``CheckpointFunction``, which gives no gradient where no tensor that is
        handed to it requires one."""

        @staticmethod
        def apply(function: Callable[..., Any], _preserve: bool, *args: Any) -> Any:
            wanted = any(isinstance(each, Tensor) and each.requires_grad for each in args)
            with annotate({_KEY: next(numbers)}), nullcontext() if wanted else torch.no_grad():
                return function(*args)

    called = next((path for path in _GENERATORS if internal(path) is not None), "")
    reentrant = f"{_MODULE}.CheckpointFunction"
    with preserve_node_meta(), replaced(called, generator), replaced(reentrant, Reentrant):
        yield


def regions_of(program: Any) -> dict[str, int]:
    """The checkpointed region of each node of a program, by the node's name."""
    found = {}
    for node in program.graph.nodes:
        custom = node.meta.get("custom") or {}
        if _KEY in custom:
            found[node.name] = custom[_KEY]
    return found
