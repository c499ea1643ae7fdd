"""PyTorch's side of :mod:`memplan.proto.surrogates`: the operators, and how they are translated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from onnx import defs
from onnxscript import values
from torch import Tensor

from memplan.proto.surrogates import DOMAIN, GRADIENT_OF, OP, WITH_GRADIENT

_FLOATS = ("float16", "bfloat16", "float", "double", "complex64", "complex128")
_KINDS = [f"tensor({kind})" for kind in _FLOATS]
_Parameter = defs.OpSchema.FormalParameter
_Attribute = defs.OpSchema.Attribute
_OPSET = values.Opset(DOMAIN, 1)


def _note(ctx: Any, inputs: tuple[Tensor, Tensor | None], output: Tensor) -> None:
    ctx.replaced = inputs[1] is not None
    if not ctx.replaced:
        ctx.mark_non_differentiable(output)


def _backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None]:
    return None, grad if ctx.replaced else None


_operator: Any = torch.library.custom_op(
    "memplan::backward_through",
    lambda value, surrogate=None: value.clone(),
    mutates_args=(),
    schema="(Tensor value, Tensor? surrogate=None) -> Tensor",
)
_operator.register_fake(lambda value, surrogate=None: torch.empty_like(value))
_operator.register_autograd(_backward, setup_context=_note)
BACKWARD_THROUGH: Any = torch.ops.memplan.backward_through.default


def backward_through(value: Tensor, surrogate: Tensor | None = None) -> Tensor:
    """``value``, whose gradient is that of ``surrogate`` (the same shape and type), or none."""
    found: Tensor = _operator(value, surrogate)
    return found


def translated(value: Any, surrogate: Any = None) -> Any:
    """The node for it."""
    given = (value,) if surrogate is None else (value, surrogate)
    return _op(OP, len(given), 1, ())(*given)


gradient_of: Any = torch.library.custom_op(
    "memplan::gradient_of",
    lambda y, number, slot, label: torch.zeros_like(y),
    mutates_args=(),
    schema="(Tensor y, int number, int slot, str label) -> Tensor",
)
"""What stands for the gradient of ``y`` in a backward that is recorded."""
gradient_of.register_fake(lambda y, number, slot, label: torch.empty_like(y))
with_gradient: Any = torch.library.custom_op(
    "memplan::with_gradient",
    lambda ys, xs, dxs, number, label: [y.clone() for y in ys],
    mutates_args=(),
    schema="(Tensor[] ys, Tensor[] xs, Tensor[] dxs, int number, str label) -> Tensor[]",
)
"""``ys``, whose backward gives ``dxs`` to ``xs``."""
with_gradient.register_fake(lambda ys, xs, dxs, number, label: [torch.empty_like(y) for y in ys])
GRADIENT: Any = torch.ops.memplan.gradient_of.default
WITH: Any = torch.ops.memplan.with_gradient.default


def _op(name: str, inputs: int, outputs: int, attributes: Sequence[tuple[str, Any]]) -> Any:
    """An operator of so many inputs and outputs."""
    kinds = [f"T{k}" for k in range(inputs)]
    schema = defs.OpSchema(
        name,
        DOMAIN,
        1,
        inputs=[_Parameter(f"input_{k}", kind) for k, kind in enumerate(kinds)],
        outputs=[_Parameter(f"output_{k}", kinds[k]) for k in range(outputs)],
        type_constraints=[(kind, _KINDS, "") for kind in kinds],
        attributes=[_Attribute(key, kind, required=True) for key, kind in attributes],
    )
    return values.Op(_OPSET, name, schema)


_INT, _STRING = defs.OpSchema.AttrType.INT, defs.OpSchema.AttrType.STRING


def gradient_translated(y: Any, number: int, slot: int, label: str) -> Any:
    """The node for :data:`gradient_of`."""
    stated = (("number", _INT), ("slot", _INT), ("label", _STRING))
    return _op(GRADIENT_OF, 1, 1, stated)(y, number=number, slot=slot, label=label)


def with_gradient_translated(
    ys: Sequence[Any], xs: Sequence[Any], dxs: Sequence[Any], number: int, label: str
) -> list[Any]:
    """The node for :data:`with_gradient`."""
    given = (*ys, *xs, *dxs)
    stated = (("number", _INT), ("ys", _INT), ("xs", _INT), ("label", _STRING))
    made = _op(WITH_GRADIENT, len(given), len(ys), stated)(
        *given, number=number, ys=len(ys), xs=len(xs), label=label
    )
    return [made] if len(ys) == 1 else list(made)
