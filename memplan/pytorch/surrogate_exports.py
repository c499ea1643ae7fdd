"""PyTorch's side of :mod:`memplan.proto.surrogates`: the operator, and how it is translated."""

from __future__ import annotations

from typing import Any

import torch
from onnx import defs
from onnxscript import values
from torch import Tensor

from memplan.proto.surrogates import DOMAIN, OP

_FLOATS = ("float16", "bfloat16", "float", "double", "complex64", "complex128")
_Parameter = defs.OpSchema.FormalParameter
_SCHEMA = defs.OpSchema(
    OP,
    DOMAIN,
    1,
    inputs=[
        _Parameter("value", "T"),
        _Parameter("surrogate", "T", param_option=defs.OpSchema.FormalParameterOption.Optional),
    ],
    outputs=[_Parameter("result", "T")],
    type_constraints=[("T", [f"tensor({kind})" for kind in _FLOATS], "")],
)
_private = values.Op(values.Opset(DOMAIN, 1), OP, _SCHEMA)


def _forward(value: Tensor, surrogate: Tensor | None = None) -> Tensor:
    return value.clone()


def _shape(value: Tensor, surrogate: Tensor | None = None) -> Tensor:
    return torch.empty_like(value)


def _note(ctx: Any, inputs: tuple[Tensor, Tensor | None], output: Tensor) -> None:
    ctx.replaced = inputs[1] is not None


def _backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None]:
    return None, grad if ctx.replaced else None


_operator: Any = torch.library.custom_op(
    "memplan::backward_through",
    _forward,
    mutates_args=(),
    schema="(Tensor value, Tensor? surrogate=None) -> Tensor",
)
_operator.register_fake(_shape)
_operator.register_autograd(_backward, setup_context=_note)
BACKWARD_THROUGH: Any = torch.ops.memplan.backward_through.default


def backward_through(value: Tensor, surrogate: Tensor | None = None) -> Tensor:
    """``value``, whose gradient is that of ``surrogate`` (the same shape and type), or none."""
    found: Tensor = _operator(value, surrogate)
    return found


def translated(value: Any, surrogate: Any = None) -> Any:
    """The node for it."""
    return _private(value) if surrogate is None else _private(value, surrogate)
