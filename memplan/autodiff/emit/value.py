"""A tensor under construction, with arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy.typing as npt

from memplan.errors import ModelError
from memplan.shapes.tensor_type import Shape, TensorType

Array = npt.NDArray[Any]
Number = int | float


class AddsNodes(Protocol):
    """What arithmetic on tensors needs: somebody who adds nodes to a graph."""

    def op(
        self, op: str, *inputs: Operand, result: TensorType | None = None, **attributes: Any
    ) -> Value:
        """A node with one output."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the graph under construction. ``a * b``, ``a + 1`` and the like build nodes.

    Numbers take the other side's element type. Two values are equal if they are one tensor.
    """

    name: str
    type: TensorType = field(compare=False)
    emitter: AddsNodes = field(compare=False, repr=False)

    @property
    def dtype(self) -> int:
        """``onnx.TensorProto`` element type.

        Raises:
            ModelError: it is not known.
        """
        if not self.type.dtype:
            raise self._unknown("element type")
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        """The shape; its dimensions are sizes or names.

        Raises:
            ModelError: not even the rank is known.
        """
        if self.type.shape is None:
            raise self._unknown("rank")
        return self.type.shape

    def _unknown(self, what: str) -> ModelError:
        return ModelError(
            f"the {what} of tensor '{self.name}' is not known, and its gradient depends on it",
            "add value_info for it, or run onnx.shape_inference",
        )

    @property
    def rank(self) -> int:
        """Number of dimensions (raises as :attr:`shape`)."""
        return len(self.shape)

    def __add__(self, other: Value | Number) -> Value:
        return self.emitter.op("Add", self, other)

    def __radd__(self, other: Number) -> Value:
        return self.emitter.op("Add", self, other)

    def __sub__(self, other: Value | Number) -> Value:
        return self.emitter.op("Sub", self, other)

    def __rsub__(self, other: Number) -> Value:
        return self.emitter.op("Sub", other, self)

    def __mul__(self, other: Value | Number) -> Value:
        return self.emitter.op("Mul", self, other)

    def __rmul__(self, other: Number) -> Value:
        return self.emitter.op("Mul", self, other)

    def __truediv__(self, other: Value | Number) -> Value:
        return self.emitter.op("Div", self, other)

    def __rtruediv__(self, other: Number) -> Value:
        return self.emitter.op("Div", other, self)

    def __neg__(self) -> Value:
        return self.emitter.op("Neg", self)


Operand = Value | Number | None
"""What an operator reads: a tensor, a number (becomes a constant), or nothing at this slot."""
