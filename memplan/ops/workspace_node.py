"""A node as the workspace formulas see it, and arithmetic that several of them share.

Light on purpose: the standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

# onnx.TensorProto element types that formulas tell apart.
FLOAT, INT32, INT64, BOOL, FLOAT16 = 1, 6, 7, 9, 10
_ITEM_BYTES = {
    1: 4,
    2: 1,
    3: 1,
    4: 2,
    5: 2,
    6: 4,
    7: 8,
    9: 1,
    10: 2,
    11: 8,
    12: 4,
    13: 8,
    14: 8,
    15: 16,
    16: 2,
    17: 1,
    18: 1,
    19: 1,
    20: 1,
}


class TensorSpec(Protocol):
    """What a formula needs to know of a tensor; `dtype` is an onnx TensorProto code."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions, all known."""

    @property
    def dtype(self) -> int:
        """Element type, as in TensorProto.DataType."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""


@dataclass(frozen=True)
class Node:
    """The arguments of one formula."""

    attributes: Mapping[str, object]
    inputs: Sequence[TensorSpec | None]
    outputs: Sequence[TensorSpec | None]
    threads: int

    def input(self, index: int) -> TensorSpec | None:
        """The input, None when it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def output(self, index: int) -> TensorSpec | None:
        """The output, None when it is absent."""
        return self.outputs[index] if index < len(self.outputs) else None

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def text(self, name: str, default: str) -> str:
        """A string attribute."""
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def integers(self, name: str, default: Sequence[int]) -> Sequence[int]:
        """A list of integers; an empty or absent one is the default."""
        value = self.attributes.get(name)
        return value if isinstance(value, Sequence) and value else default


Formula = Callable[[Node], int | None]


def item_bytes(tensor: TensorSpec) -> int:
    return _ITEM_BYTES.get(tensor.dtype, 0)


def elements(tensor: TensorSpec | None) -> int:
    return prod(tensor.shape) if tensor is not None else 0


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(0 if 0 in dims else max(dims) for dims in zip(*padded, strict=True))
