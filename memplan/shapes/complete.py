"""The type and shape of every tensor: all that can tell one, taken together.

Sources, best first: ONNX shape inference, what the file states, rules of our own for operators that
ONNX does not know, such as shape(X_grad) = shape(X), and a stated shape whose symbolic expression
(``2*N``) can be evaluated.
"""

from __future__ import annotations

import onnx

from memplan.proto.edit import copied
from memplan.proto.limits import MOST_FOLDED
from memplan.shapes.body_shapes import output_types
from memplan.shapes.fold import evaluate
from memplan.shapes.infer import (
    Array,
    infer,
    is_complete,
    replace_by_constants,
    state_types,
    stated_types,
)
from memplan.shapes.nchwc import in_blocks, nchwc_type
from memplan.shapes.shape_checks import StrictWalk, types_at_once
from memplan.shapes.tensor_type import UNKNOWN, TensorType, known_shapes, type_bytes
from memplan.shapes.training_ops import bound_of_sum, training_type


def value_types(bound: onnx.ModelProto) -> tuple[dict[str, TensorType], list[str]]:
    """Type and shape of every tensor of the main graph of ``bound`` (dimensions bound).

    A shape that no source gives is None; :func:`memplan.shapes.shape_checks.require_shapes` turns
    that into an error. The second result names tensors whose shape is only an upper bound.

    Raises:
        ModelError: what the file states does not fit; see
            :class:`memplan.shapes.shape_checks.StrictWalk`.
    """
    types = types_at_once(bound)
    if types is not None:
        return types, []
    walk = _CompleteWalk(bound)
    walk.run()
    while not is_complete(bound.graph, walk.known):  # each round tells a shape, or is the last
        known = known_shapes(walk.known)
        walk.propagate()
        walk.run()
        learnt = known_shapes(walk.known) != known
        if walk.bounding and not learnt:
            break
        walk.bounding = not learnt
    return walk.known, walk.bounded


class _CompleteWalk(StrictWalk):
    """What small tensors hold is computed, and what inference does not know is found by rules;
    ``bounding``: also bounds, of the sums in ``bounded`` whose shape nothing else tells."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        self.bounding = False
        self.bounded: list[str] = []
        self._computed: dict[str, Array] = {}
        self._left = MOST_FOLDED
        self._in_blocks = in_blocks(model.graph)
        self._blocked: set[str] = set()

    def visit(self, node: onnx.NodeProto) -> None:
        """Find the types of a node's outputs where they are not known, and what they hold."""
        if self._lacking(node):
            super().visit(node)
        if self._in_blocks or self._lacking(node):
            self._apply_rules(node)
        if self._left >= 0:
            for name, array in evaluate(self.model, node, self.values, self.known).items():
                self._left -= array.size
                self._computed[name] = array
                self.hold(name, array)
                if self.known[name].shape is None:
                    dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
                    self.learn(name, TensorType(int(dtype), array.shape))

    def is_certain(self, node: onnx.NodeProto) -> bool:
        """See :class:`StrictWalk`; an initializer that was computed with may be replaced."""
        return super().is_certain(node) and self._computed.keys().isdisjoint(node.input)

    def propagate(self) -> None:
        """Let ONNX propagate values through the whole graph: it follows sizes of tensors of which
        only some are known, too."""
        working = copied(self.model)
        replace_by_constants(working.graph, self._computed)
        state_types(working.graph, self.known)
        for name, found in stated_types(infer(working).graph).items():
            if found.shape is not None and self.known.get(name, UNKNOWN).shape is None:
                self.stated[name] = type_bytes(found)

    def _lacking(self, node: onnx.NodeProto) -> list[str]:
        return [n for n in node.output if n and self.known.get(n, UNKNOWN).shape is None]

    def _apply_rules(self, node: onnx.NodeProto) -> None:
        lacking = self._lacking(node)
        of_bodies = output_types(self.model, node, self.known) if lacking else {}
        blocked = nchwc_type(node, self.known, self._blocked) if self._in_blocks else None
        for index, name in enumerate(node.output):
            if name not in lacking:
                continue
            found = of_bodies.get(name) or training_type(node, index, self.known)
            if found is None or found.shape is None:
                found = blocked if index == 0 else None
            if found is None and self.bounding:
                found = bound_of_sum(node, self.known)
                self.bounded += [name] if found is not None and found.shape is not None else []
            if found is not None and found.shape is not None:
                self.learn(name, found)
