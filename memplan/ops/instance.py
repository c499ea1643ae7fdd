"""An operator as it stands in a graph, which is what the rules of the operator book look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np
import numpy.typing as npt

from memplan.ir.graph import ABSENT, Graph, Node
from memplan.proto.elements import tensor_bytes
from memplan.shapes.fold import whole_numbers

# onnx.TensorProto element types that formulas tell apart.
FLOAT, INT32, INT64, BOOL, FLOAT16 = 1, 6, 7, 9, 10
_LATEST = 1 << 16


class TensorSpec(Protocol):
    """What a rule needs to know of a tensor; `dtype` is an onnx TensorProto code."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions, all known."""

    @property
    def dtype(self) -> int:
        """Element type, as in TensorProto.DataType."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""


def _unknown(slot: int) -> list[int] | None:
    """The contents of an input that nothing is known of."""
    return None


@dataclass(frozen=True, slots=True)
class Instance:
    """What a rule is given: attributes, and tensors by slot, None where one is absent.

    ``opset``: of the standard operators. ``contents``: the whole numbers in a constant input, by
    slot; None where they are not known. ``threads``: of the session.
    """

    attributes: Mapping[str, object]
    inputs: Sequence[TensorSpec | None]
    outputs: Sequence[TensorSpec | None]
    opset: int = _LATEST
    contents: Callable[[int], list[int] | None] = _unknown
    threads: int = 1

    def input(self, index: int) -> TensorSpec | None:
        """The input, None when it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def output(self, index: int) -> TensorSpec | None:
        """The output, None when it is absent."""
        return self.outputs[index] if index < len(self.outputs) else None

    def shape(self, slot: int) -> tuple[int, ...]:
        """The shape of an input; empty when it is absent."""
        tensor = self.input(slot)
        return () if tensor is None else tensor.shape

    def rank(self, slot: int = 0) -> int:
        """How many dimensions an input has; 0 when it is absent."""
        return len(self.shape(slot))

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

    def numbers(self, slot: int, attribute: str = "") -> list[int] | None:
        """Whole numbers from a constant input or, in older opsets, from an attribute: none is
        ``[]``; None where they are not known."""
        if self.input(slot) is None:
            return [int(value) for value in self.integers(attribute, ())]
        return self.contents(slot)

    def axis(self, default: int) -> int:
        """The attribute ``axis``, counted from the first one of the first input."""
        return self.integer("axis", default) % max(self.rank(), 1)


MISFITS = (LookupError, ValueError, TypeError, ArithmeticError)
"""What a rule of the book raises of a node whose inputs do not fit its operator: nobody has looked
whether they do, and no runtime would take the file."""
Formula = Callable[[Instance], int | None]
"""Bytes of scratch; None where they are not known."""
Work = Callable[[Instance], float]
"""Multiply-adds."""


def in_graph(
    graph: Graph,
    node: Node,
    *,
    values: Mapping[str, npt.NDArray[np.generic]] | None = None,
    threads: int = 1,
) -> Instance:
    """A node as its rules look at it.

    Args:
        graph: that it is a node of.
        node: the node.
        values: contents of small constants by name.
        threads: of the session.
    """

    def contents(slot: int) -> list[int] | None:
        return whole_numbers((values or {}).get(graph.tensors[node.inputs[slot]].name))

    inputs = [graph.tensors[t] if t != ABSENT else None for t in node.inputs]
    outputs = [graph.tensors[t] if t != ABSENT else None for t in node.outputs]
    return Instance(node.attributes, inputs, outputs, graph.opset, contents, max(1, threads))


def item_bytes(tensor: TensorSpec) -> int:
    """Bytes per element, whole ones; 0 for a type without a size."""
    return tensor_bytes(tensor.dtype, ())


def elements(tensor: TensorSpec | None) -> int:
    """How many elements a tensor has; 0 when it is absent."""
    return prod(tensor.shape) if tensor is not None else 0


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that shapes broadcast to."""
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(0 if 0 in dims else max(dims) for dims in zip(*padded, strict=True))
