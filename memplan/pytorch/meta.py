"""Models on PyTorch's meta device: shapes and types, and no values.

What is captured of them has no weights; all else is as for any model. Values that the graph itself
would have to hold are missing, and are named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.export.graph_signature import InputKind

from memplan.errors import ModelError, UsageError


def on_device(name: str) -> torch.device:
    """A device, to be entered: what is made inside lies there."""
    return torch.device(name)


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
