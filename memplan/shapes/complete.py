"""The type and shape of every tensor: all that can tell one, taken together.

Sources, best first: what the file states with all dimensions known, ONNX shape inference, a stated
shape whose symbolic expression (``2*N``) can be evaluated, and the rule shape(X_grad) = shape(X).
"""

from __future__ import annotations

import onnx

from memplan.proto.edit import copied
from memplan.shapes.bodies import output_types
from memplan.shapes.checks import check_stated
from memplan.shapes.fold import types_by_folding
from memplan.shapes.infer import ROUNDS, infer, is_complete, state_types, stated_types
from memplan.shapes.nchwc import fill_nchwc_types
from memplan.shapes.tensor_type import TensorType, Types, known_shapes
from memplan.shapes.training_ops import bound_reductions, fill_training_types


def value_types(
    bound: onnx.ModelProto, stated: dict[str, TensorType] | None = None
) -> tuple[dict[str, TensorType], list[str]]:
    """Type and shape of every tensor of the main graph of ``bound`` (dimensions bound).

    A shape that no source gives is None; :func:`memplan.shapes.checks.require_shapes` turns that
    into an error. The second result names tensors whose shape is only an upper bound. ``stated`` is
    what ``bound`` states (:func:`memplan.shapes.infer.stated_types`), if that is known already.

    Raises:
        ModelError: what the file states does not fit; see
            :func:`memplan.shapes.checks.check_stated`.
    """
    if stated is None:
        stated = stated_types(bound.graph)
    check_stated(bound, stated)
    if is_complete(bound.graph, stated):
        return stated, []
    result = stated_types(infer(bound).graph)
    _merge(result, stated)
    fill_training_types(bound.graph, result)
    fill_nchwc_types(bound.graph, result)
    if is_complete(bound.graph, result):
        return result, []
    bounded: list[str] = []
    working = copied(bound)
    for _ in range(2 * ROUNDS):  # each may end in sums that are bounded
        known = known_shapes(result)
        _merge(result, types_by_folding(working, result))
        for node in working.graph.node:
            _merge(result, output_types(working, node, result))
        del working.graph.value_info[:]
        state_types(working.graph, result)
        _merge(result, stated_types(infer(working).graph))
        fill_training_types(bound.graph, result)
        fill_nchwc_types(bound.graph, result)
        if known_shapes(result) == known:
            found = bound_reductions(bound.graph, result)
            if not found:
                break
            bounded += found
    return result, bounded


def _merge(types: dict[str, TensorType], more: Types) -> None:
    """Take over what is not known yet."""
    for name, value in more.items():
        known = types.get(name)
        if known is None or (known.shape is None and value.shape is not None):
            types[name] = value
