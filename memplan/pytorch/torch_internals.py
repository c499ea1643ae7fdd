"""The parts of PyTorch that are not public and that memplan stands on: all of them, and no others.

Each has the reason for which it is needed, and what stands in where it is missing or of another
kind. Where nothing does, that is said (exit code 5) before anything else fails; a test goes through
all of them. A new PyTorch is looked at here first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from threading import local
from types import ModuleType
from typing import Any
from unittest import mock

import torch

from memplan.pytorch.installed_torch import does_not_fit

OPERATOR = type(torch.ops.aten.clone.default)
"""The class of an operator with its overload."""
_EXPORTER = "torch.onnx._internal.exporter"
_PARTITIONERS = "torch._functorch.partitioners"


@dataclass(frozen=True, slots=True)
class Internal:
    """Why a part of PyTorch is needed, what stands in for it, if anything does, and of which type
    it is: something to call, if nothing else is said."""

    reason: str
    instead: str = ""
    kind: Any = Callable


INTERNALS = {
    # --- capture: the exporter -----------------------------------------------------------------
    f"{_EXPORTER}._registration": Internal(
        "operators → ONNX, with translations of our own instead of some of PyTorch's",
        kind=ModuleType,
    ),
    f"{_EXPORTER}._decomp": Internal(
        "which operators are decomposed because ONNX has no form", kind=ModuleType
    ),
    f"{_EXPORTER}._core.export": Internal(
        "torch.onnx.export with such a registry, and without its optimizer"
    ),
    f"{_EXPORTER}._fx_passes.decompose_with_registry": Internal(
        "the program is decomposed already; a second time would undo that"
    ),
    # --- capture: what is traced -----------------------------------------------------------------
    "torch.fx.proxy.TracerBase._filter_traceback_frames": Internal(
        "every node tells the user's lines", "nodes tell lines of methods forward alone"
    ),
    "torch.utils.checkpoint._checkpoint_without_reentrant_generator": Internal(
        "checkpointed regions run once, and are marked"
    ),
    "torch.utils.checkpoint._checkpoint_without_reentrant_generator_impl": Internal(
        "the same from PyTorch 2.14 on", "the former is what runs"
    ),
    "torch.utils.checkpoint.CheckpointFunction": Internal(
        "the same with use_reentrant=True", kind=type
    ),
    "torch.distributions.Distribution._validate_args": Internal(
        "checks of arguments branch on values", "steps with distributions are refused", bool
    ),
    "torch.utils._pytree": Internal("the tensors in nested results and arguments", kind=ModuleType),
    "torch.utils._python_dispatch.TorchDispatchMode": Internal(
        "random numbers of the step that a captured one is held against", kind=type
    ),
    # --- capture: what a step reads and leaves ---------------------------------------------------
    **{
        f"torch.nn.modules.module._global_{name}_hooks": Internal(
            "hooks of all modules there are", kind=dict
        )
        for name in ("forward_pre", "forward", "backward_pre", "backward")
    },
    "torch._GLOBAL_DEVICE_CONTEXT": Internal(
        "the default device, without making a tensor", "torch.get_default_device", local
    ),
    # --- torch_solver ----------------------------------------------------------------------------
    "torch._functorch.config": Internal(
        "settings of AOTAutograd: its cache, and what it merges", kind=ModuleType
    ),
    "torch._functorch.compile_utils.fx_graph_cse": Internal("merges nodes as its partitioner does"),
    f"{_PARTITIONERS}.default_partition": Internal("graphs that have no backward part"),
    f"{_PARTITIONERS}._extract_fwd_bwd_modules": Internal("cuts a joint graph in two"),
    "torch._inductor.custom_graph_pass.CustomPartitionerFn": Internal(
        "what Inductor takes a partitioner by", kind=type
    ),
    "torch._inductor.compile_fx.compile_fx": Internal("compiles with such a partitioner"),
    "torch._dynamo.backends.common.aot_autograd": Internal("the same without Inductor"),
    "torch._dynamo.backends.debugging.boxed_nop": Internal("runs a graph as it is"),
    "torch._C._has_storage": Internal("which tensors share memory with others"),
    "torch._guards.CompileContext": Internal("which graph of a step is being compiled", kind=type),
}
"""By path."""


def internal(path: str) -> Any:
    """A part of PyTorch that the table names; None where it is missing and something stands in.

    Raises:
        RuntimeUnavailableError: it is missing or of another kind, and nothing stands in.
    """
    told = INTERNALS[path]
    try:
        found = _resolved(path)
    except (ImportError, AttributeError):
        why = f"there is no {path}"
    else:
        if isinstance(found, told.kind):
            return found
        why = f"{path} is of another kind"
    if told.instead:
        return None
    raise does_not_fit(f"{why}, which is needed for this: {told.reason}")


@contextmanager
def replaced(path: str, own: Any) -> Iterator[None]:
    """Inside, something of our own stands in the place of a part that the table names; nothing,
    where the part is missing and the table says what is done then.

    Raises:
        RuntimeUnavailableError: as of :func:`internal`.
    """
    if internal(path) is None:
        yield
        return
    owner, _, name = path.rpartition(".")
    with mock.patch.object(_resolved(owner), name, own):
        yield


def _resolved(path: str) -> Any:
    """What a path leads to, through modules, classes and their attributes."""
    names = path.split(".")
    found: Any = import_module(names[0])
    for k, name in enumerate(names[1:], 2):
        try:
            found = getattr(found, name)
        except AttributeError:
            if not isinstance(found, ModuleType):
                raise
            found = import_module(".".join(names[:k]))
    return found
