"""Backward nodes that are better run in the forward part, as what they make is smaller.

The gradient of Relu asks where its output is positive. If nothing else in the backward part reads
that output, the answer (a byte each) is kept instead of the numbers (four bytes each).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx
from onnx import helper

from memplan.ir.graph import Phase
from memplan.ops.book import SAME_ELEMENTS
from memplan.proto.elements import ELEMENT_BITS
from memplan.proto.metadata import PHASE_KEY
from memplan.proto.nodes import captured_names, operator_key
from memplan.shapes.tensor_type import UNKNOWN, TensorType

_ROUNDS = 4


def hoist(
    nodes: Sequence[onnx.NodeProto],
    backward: Collection[str],
    types: Mapping[str, TensorType],
    held: Collection[str],
) -> list[onnx.NodeProto]:
    """``nodes`` with some of the backward ones moved right behind what they read.

    Args:
        nodes: in order.
        backward: names of the backward nodes among them.
        types: of all tensors.
        held: tensors that stay in memory anyway (graph outputs).
    """
    state = _State(nodes, set(backward), types, held)
    moved: set[str] = set()
    for _ in range(_ROUNDS):
        found = state.round()
        if not found:
            break
        moved |= found
    return _in_order(nodes, moved) if moved else list(nodes)


class _State:
    """Which nodes are still backward, and who of them reads which forward buffer."""

    def __init__(
        self,
        nodes: Sequence[onnx.NodeProto],
        backward: set[str],
        types: Mapping[str, TensorType],
        held: Collection[str],
    ) -> None:
        self.nodes = nodes
        self.backward = backward
        self.types = types
        self.root: dict[str, str] = {}
        for node in nodes:
            for name in node.output:
                view = operator_key(node) in SAME_ELEMENTS
                self.root[name] = self.root.get(node.input[0], node.input[0]) if view else name
        self.held = {self.root.get(name, name) for name in held}

    def round(self) -> set[str]:
        """Move every group of nodes that alone keep some buffers, and make far less than those."""
        made = {
            name for node in self.nodes if node.name not in self.backward for name in node.output
        }
        above = {name for node in self.nodes if node.name in self.backward for name in node.output}
        readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            if node.name in self.backward:
                names = {*node.input, *captured_names(node)} & made
                for root in {self.root[name] for name in names}:
                    readers.setdefault(root, []).append(node)
        found: set[str] = set()
        for group in readers.values():
            names = {node.name for node in group}
            if any(not above.isdisjoint(node.input) or captured_names(node) for node in group):
                continue
            roots = {self.root[name] for node in group for name in node.input if name in made}
            freed = [
                root for root in roots - self.held if {node.name for node in readers[root]} <= names
            ]
            kept = [name for node in group for name in node.output if name]
            if self._are_smaller(kept, freed):
                found |= names
        self.backward -= found
        return found

    def _are_smaller(self, some: Sequence[str], others: Sequence[str]) -> bool:
        """Whether some tensors are together at most half as large as others are."""
        names = [*some, *others]
        known = [self.types.get(name, UNKNOWN) for name in names]
        if any(kind.dtype == 0 or kind.shape is None for kind in known):
            return False
        sizes = [ELEMENT_BITS.get(kind.dtype, 0) for kind in known]
        if len({kind.shape for kind in known}) > 1:  # else, whatever the dimensions turn out to be
            counts = [kind.elements for kind in known]
            sizes = [n * width for n, width in zip(counts, sizes, strict=True) if n is not None]
        split = len(some)
        return len(sizes) == len(names) and 0 < 2 * sum(sizes[:split]) <= sum(sizes[split:])


def _in_order(nodes: Sequence[onnx.NodeProto], moved: Collection[str]) -> list[onnx.NodeProto]:
    """Each moved node behind the last node that makes something it reads, as forward work."""
    maker = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    behind: dict[int, list[onnx.NodeProto]] = {}
    place: dict[int, int] = {}
    for index, node in enumerate(nodes):
        if node.name not in moved:
            continue
        sources = [maker[name] for name in node.input if name in maker]
        place[index] = max((place.get(source, source) for source in sources), default=-1)
        behind.setdefault(place[index], []).append(node)
        stated = {item.key: item.value for item in node.metadata_props}
        helper.set_metadata_props(node, stated | {PHASE_KEY: str(Phase.FORWARD)})
    result = list(behind.get(-1, []))
    for index, node in enumerate(nodes):
        if node.name not in moved:
            result += [node, *behind.get(index, [])]
    return result
