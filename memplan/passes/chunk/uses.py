"""How a node may run on a part of its inputs: a *use* names an axis of every tensor it touches.

A node runs in chunks along a use if a part of the inputs along their axes gives the part of the
outputs along theirs, or a summand of an output. Rules by operator are in the modules beside this
one; an operator without a rule is not chunked. They go by shapes that hold in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memplan.ir.graph import ABSENT, Graph, Node

Array = npt.NDArray[np.generic]

WHOLE = -1
"""In place of an axis: every chunk reads the whole tensor, or none of it is read."""
SUM = -2
"""In place of an axis of an output: a chunk makes a summand of it."""


@dataclass(frozen=True, slots=True)
class Use:
    """Axes of inputs and outputs by slot.

    ``shape_slot``: the input that holds the shape of the output, and is another per chunk.
    ``addend``: the input that is added to the sum once (the third of a Gemm). ``least``: how long a
    chunk must be along the axis of the inputs so that each element is computed as in the whole.
    """

    reads: tuple[int, ...]
    makes: tuple[int, ...]
    shape_slot: int = -1
    addend: int = -1
    least: int = 1

    @property
    def sums(self) -> bool:
        """Whether the chunks' outputs are summands."""
        return SUM in self.makes


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a graph. ``values``: contents of small constants by name."""

    graph: Graph
    values: Mapping[str, Array]

    def shape(self, tensor: int) -> tuple[int, ...]:
        """The shape of a tensor; empty if it is left out."""
        return () if tensor == ABSENT else self.graph.tensors[tensor].shape

    def present(self, node: Node, slot: int) -> bool:
        """Whether an optional input is there."""
        return slot < len(node.inputs) and node.inputs[slot] != ABSENT

    def ints(self, node: Node, slot: int, attribute: str = "") -> list[int] | None:
        """Whole numbers from a constant input or, in older opsets, from an attribute; None if they
        are not known, and ``[]`` if there are none."""
        if not self.present(node, slot):
            given = node.attributes.get(attribute, [])
            return [int(v) for v in given] if isinstance(given, list) else None
        value = self.values.get(self.graph.tensors[node.inputs[slot]].name)
        return None if value is None else [int(v) for v in np.asarray(value).reshape(-1)]


Rule = Callable[[Facts, Node], Iterator[Use]]
RULES: dict[str, Rule] = {}
"""By operator (``domain:Op``); :mod:`memplan.passes.chunk.axis_rules` has all of them."""


def rule(*keys: str) -> Callable[[Rule], Rule]:
    """Register the rule of some operators."""

    def register(found: Rule) -> Rule:
        RULES.update(dict.fromkeys(keys, found))
        return found

    return register


def int_attribute(node: Node, name: str, default: int) -> int:
    """A whole number among the attributes."""
    value = node.attributes.get(name, default)
    return value if isinstance(value, int) else default


def aligned(shape: tuple[int, ...], rank: int, axis: int, size: int) -> int:
    """The axis of an operand that broadcasting lays on ``axis`` of a result of ``rank``
    dimensions; WHOLE where it has none, or repeats its only element."""
    own = axis - (rank - len(shape))
    return own if own >= 0 and shape[own] == size and size > 1 else WHOLE
