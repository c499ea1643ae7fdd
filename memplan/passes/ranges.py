"""Whole numbers and the bounds that they keep in every run (interval arithmetic), by tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from memplan.ir.graph import ABSENT, Node
from memplan.ops.book import MOVING
from memplan.passes.no_ops import Facts

_T = onnx.TensorProto
TYPES: Mapping[int, tuple[int, int]] = {
    _T.UINT8: (0, 255),
    _T.INT8: (-128, 127),
    _T.INT16: (-(1 << 15), (1 << 15) - 1),
    _T.INT32: (-(1 << 31), (1 << 31) - 1),
    _T.INT64: (-(1 << 63), (1 << 63) - 1),
    _T.BOOL: (0, 1),
}
"""The least and the largest number of element types of whole numbers, the narrow ones first."""
_HANDED_ON = MOVING | {":Cast"}
_ALL_OF = {":Concat": 0, ":Where": 1}  # from which input on
_DEEPEST = 24

Bounds = tuple[int, int]


@dataclass(slots=True)
class Ranges:
    """Bounds of the tensors of a graph whose shapes hold in every run."""

    facts: Facts
    _known: dict[int, Bounds | None] = field(default_factory=dict)

    def of(self, tensor: int, depth: int = 0) -> Bounds | None:
        """The least and the largest number that a tensor may hold, or None."""
        if tensor == ABSENT or depth > _DEEPEST:
            return None
        if tensor not in self._known:
            self._known[tensor] = self._within_type(tensor, self._found(tensor, depth))
        return self._known[tensor]

    def _within_type(self, tensor: int, found: Bounds | None) -> Bounds | None:
        room = TYPES.get(self.facts.graph.tensors[tensor].dtype)
        if found is None or room is None:
            return room
        return found if room[0] <= found[0] and found[1] <= room[1] else room

    def _found(self, tensor: int, depth: int) -> Bounds | None:
        graph = self.facts.graph
        value = self.facts.values.get(graph.tensors[tensor].name)
        if value is not None:
            whole = value.size and value.dtype.kind in "biu"
            return (int(value.min()), int(value.max())) if whole else None
        producer = graph.tensors[tensor].producer
        if producer < 0:
            return None
        node = graph.nodes[producer]
        return self._made(node, node.outputs.index(tensor), depth + 1)

    def _made(self, node: Node, slot: int, depth: int) -> Bounds | None:
        if node.key in _HANDED_ON and not slot:
            return self.of(node.inputs[0], depth)
        if node.key in _ALL_OF:
            return self._hull(node.inputs[_ALL_OF[node.key] :], depth)
        if (node.key, slot) in ((":MaxPool", 1), (":ArgMax", 0), (":ArgMin", 0), (":TopK", 1)):
            return self._places(node)
        if node.key not in (":Add", ":Sub", ":Mul", ":Max", ":Min") or len(node.inputs) != 2:
            return None
        first, second = (self.of(t, depth) for t in node.inputs)
        if first is None or second is None:
            return None
        if node.key in (":Max", ":Min"):
            pick = max if node.key == ":Max" else min
            return pick(first[0], second[0]), pick(first[1], second[1])
        if node.key == ":Sub":
            second = (-second[1], -second[0])
        if node.key == ":Mul":
            every = [a * b for a in first for b in second]
            return min(every), max(every)
        return first[0] + second[0], first[1] + second[1]

    def _hull(self, tensors: Sequence[int], depth: int) -> Bounds | None:
        found = [self.of(t, depth) for t in tensors]
        known = [bounds for bounds in found if bounds is not None]
        if not known or len(known) < len(found):
            return None
        return min(low for low, _ in known), max(high for _, high in known)

    def _places(self, node: Node) -> Bounds | None:
        """Places in what a node looks through; on CUDA a pool's coordinates may each be -1."""
        shape = self.facts.graph.tensors[node.inputs[0]].shape
        if not self.facts.exact or not shape or not math.prod(shape):
            return None
        if node.key == ":MaxPool":
            return -2 * math.prod(shape[2:]) - 1, math.prod(shape) - 1
        axis = node.attributes.get("axis", -1 if node.key == ":TopK" else 0)
        return (0, shape[axis] - 1) if isinstance(axis, int) else None
