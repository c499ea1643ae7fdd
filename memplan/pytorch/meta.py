"""Models on PyTorch's meta device: shapes and types, and no values.

What is captured of them has no weights; all else is as for any model. Values that the graph itself
would have to hold are missing, and are named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_map

from memplan.errors import ModelError, UsageError

META = "meta"


def check_one_device(tensors: Mapping[str, Tensor]) -> None:
    """Check that all parameters, buffers and inputs are on the meta device, or none.

    Raises:
        UsageError: names one of each.
    """
    without = [name for name, tensor in tensors.items() if tensor.is_meta]
    held = [name for name, tensor in tensors.items() if not tensor.is_meta]
    if without and held:
        raise UsageError(
            f"'{without[0]}' is on the meta device, '{held[0]}' on {tensors[held[0]].device.type}",
            "make model and batch on one device: with torch.device('meta')",
        )


def check_constants(program: Any) -> None:
    """Check that every constant of an exported program has a value.

    Raises:
        ModelError: names the first that has none, and where it is made.
    """
    places = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    for spec in program.graph_signature.input_specs:
        if spec.kind is not InputKind.CONSTANT_TENSOR:
            continue
        value = program.constants[spec.target]
        if isinstance(value, Tensor) and value.is_meta:
            raise ModelError(
                f"the constant '{spec.target}' of shape {list(value.shape)} is on the meta device "
                f"and has no value{_line_of(places[spec.arg.name])}",
                "compute it (torch.full, torch.arange), or make it a buffer of the model, which is "
                "an input then",
            )


def _line_of(node: Any) -> str:
    """The line of the user's code that first reads a constant, as far as torch tells."""
    for reader in node.users:
        lines = [line.strip() for line in reader.meta.get("stack_trace", "").splitlines()]
        if lines:
            return f": {lines[-1]}"
    return ""


@contextmanager
def as_on_cpu(program: Any) -> Iterator[None]:
    """Inside, an exported program on the meta device is one on the CPU, without values all the
    same: autograd has no rules of its own for the meta device."""
    kept = [(node, node.args, node.kwargs, dict(node.meta)) for node in _nodes(program)]
    try:
        for node, args, kwargs, meta in kept:
            node.args, node.kwargs = tree_map(_cpu, args), tree_map(_cpu, kwargs)
            node.meta = {**meta, **({"val": tree_map(_fake, meta["val"])} if "val" in meta else {})}
        yield
    finally:
        for node, args, kwargs, meta in kept:
            node.args, node.kwargs, node.meta = args, kwargs, meta


def _nodes(program: Any) -> Iterator[Any]:
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from module.graph.nodes


def _cpu(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == META:
        return torch.device("cpu")
    return value


def _fake(value: Any) -> Any:
    if not isinstance(value, FakeTensor) or not value.is_meta:
        return value
    with value.fake_mode:
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
    return made.requires_grad_(value.requires_grad)
