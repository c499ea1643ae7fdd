"""Who knows the standard operators for a foreign one: one file per family in ``rules/``.

A lowering is a function of a :class:`~memplan.autodiff.emit.context.Context` that returns one value
per output of its node::

    @lowering("SigmoidGrad", inputs=2)
    def sigmoid_grad(ctx: Context) -> Results:
        dy, y = ctx.tensors
        return [dy * y * (1 - y)]

- ``ctx.outputs[k]`` is None where nobody reads output ``k``: its entry may be None then. The types
  of the others are known as far as the file states them or ``shape(X_grad) = shape(X)`` tells.
- ``inputs`` is how many inputs must be there. Others may be left out: ``ctx.input(k)``.
- A gradient of an operator that ``grad`` knows is that rule, applied
  (:mod:`memplan.autodiff.lowering.gradient_lowerings`): nothing is written twice.
- What a lowering cannot do is a ``ModelError`` that names the node.

``ATen`` nodes are known by the operator of PyTorch that they call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx
from onnx import helper

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import load_modules
from memplan.autodiff.emit.value import Value
from memplan.proto.nodes import domain_of
from memplan.shapes.one_node import schema_of

Results = Sequence[Value | None]
Lowering = Callable[[Context], Results]
ATEN = "org.pytorch.aten"
MICROSOFT = "com.microsoft"
_RULES = "memplan.autodiff.lowering.rules"


@dataclass(frozen=True, slots=True)
class LoweringEntry:
    """A lowering, and how many inputs its node must have."""

    function: Lowering
    inputs: int


_ENTRIES: dict[str, LoweringEntry] = {}


def lowering(*ops: str, inputs: int = 1) -> Callable[[Lowering], Lowering]:
    """Register a lowering for some operators of onnxruntime-training, or (``aten::NAME``) of
    PyTorch; see the module's text."""

    def register(function: Lowering) -> Lowering:
        for op in ops:
            if op in _ENTRIES:
                raise ValueError(f"two lowerings are registered for {op}")
            _ENTRIES[op] = LoweringEntry(function, inputs)
        return function

    return register


def operator_of(node: onnx.NodeProto) -> str:
    """What lowerings are registered under: the operator's name, or ``aten::NAME``."""
    if domain_of(node) != ATEN:
        return node.op_type
    for item in node.attribute:
        if item.name == "operator":
            name = helper.get_attribute_value(item)
            return f"aten::{name.decode(errors='replace') if isinstance(name, bytes) else name}"
    return node.op_type


def entry_for(node: onnx.NodeProto, opset: int) -> LoweringEntry | None:
    """The lowering of a foreign node; None for ONNX's own operators, and where there is none."""
    if not is_foreign(node, opset) or domain_of(node) not in ("", MICROSOFT, ATEN):
        return None
    load_modules(_RULES)
    return _ENTRIES.get(operator_of(node))


def is_foreign(node: onnx.NodeProto, opset: int) -> bool:
    """Whether ONNX does not define a node's operator at an opset.

    onnxruntime-training put some of its own into ONNX's domain.
    """
    return bool(domain_of(node)) or schema_of("", node.op_type, opset) is None


def registered() -> frozenset[str]:
    """Every operator with a lowering."""
    load_modules(_RULES)
    return frozenset(_ENTRIES)
