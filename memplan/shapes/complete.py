"""The type and shape of every tensor: all that can tell one, taken together.

Sources, best first: what the file states with all dimensions known, ONNX shape inference, a stated
shape whose symbolic expression (``2*N``) can be evaluated, and the rule shape(X_grad) = shape(X).
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from memplan.proto.edit import copied
from memplan.proto.limits import MOST_FOLDED
from memplan.proto.nodes import subgraphs
from memplan.proto.opset import default_opset
from memplan.shapes.body_shapes import output_types
from memplan.shapes.fold import evaluate, small_constants, types_by_folding
from memplan.shapes.infer import Array, infer, is_complete, state_types, stated_types
from memplan.shapes.nchwc import fill_nchwc_types
from memplan.shapes.one_node import infer_types
from memplan.shapes.shape_checks import check_stated
from memplan.shapes.tensor_type import UNKNOWN, TensorType, Types, known_shapes
from memplan.shapes.training_ops import bound_reductions, fill_training_types


def value_types(
    bound: onnx.ModelProto,
) -> tuple[dict[str, TensorType], list[str]]:
    """Type and shape of every tensor of the main graph of ``bound`` (dimensions bound).

    A shape that no source gives is None; :func:`memplan.shapes.shape_checks.require_shapes` turns
    that into an error. The second result names tensors whose shape is only an upper bound.

    Raises:
        ModelError: what the file states does not fit; see
            :func:`memplan.shapes.shape_checks.check_stated`.
    """
    stated = stated_types(bound.graph)
    check_stated(bound, stated)
    if is_complete(bound.graph, stated):
        return stated, []
    result = stated_types(infer(bound).graph)
    _merge(result, stated)
    fill_training_types(bound.graph.node, result)
    fill_nchwc_types(bound.graph, result)
    if is_complete(bound.graph, result):
        return result, []
    bounded: list[str] = []
    working, bounding = copied(bound), False
    while True:  # each round tells a shape, or is the last
        known = known_shapes(result)
        bounded += _node_by_node(working, result, bounding=bounding)
        _merge(result, types_by_folding(working, result))
        del working.graph.value_info[:]
        state_types(working.graph, result)
        _merge(result, stated_types(infer(working).graph))
        fill_training_types(bound.graph.node, result)
        fill_nchwc_types(bound.graph, result)
        learnt = known_shapes(result) != known
        if bounding and not learnt:
            return result, bounded
        bounding = not learnt


def _node_by_node(
    model: onnx.ModelProto, types: dict[str, TensorType], *, bounding: bool
) -> list[str]:
    """Add what follows of each node from those before it, so that a chain takes one look however
    long it is.

    ``bounding``: also bounds, of sums whose shape nothing else tells; the names of these.
    """
    values = small_constants(model.graph, defaults=True)
    bounded: list[str] = []
    left = MOST_FOLDED
    for node in model.graph.node:
        if left >= 0:
            made = evaluate(model, node, values, types)
            values.update(made)
            left -= sum(array.size for array in made.values())
        if all(not name or types.get(name, UNKNOWN).shape is not None for name in node.output):
            continue
        _merge(types, _by_node(model, node, types, values))
        _merge(types, output_types(model, node, types))
        fill_training_types([node], types)
        bounded += bound_reductions([node], types) if bounding else []
    return bounded


def _by_node(
    model: onnx.ModelProto, node: onnx.NodeProto, types: Types, values: Mapping[str, Array]
) -> Types:
    """What ONNX's inference tells of one node of the main graph."""
    if subgraphs(node):
        return {}
    try:
        found = infer_types(node, types, values, default_opset(model), apart=True)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError):
        return {}
    except (RuntimeError, ValueError):
        return {}
    return {n: t for n, t in zip(node.output, found, strict=True) if n and t.sizes is not None}


def _merge(types: dict[str, TensorType], more: Types) -> None:
    """Take over what is not known yet."""
    for name, value in more.items():
        known = types.get(name)
        if known is None or (known.shape is None and value.shape is not None):
            types[name] = value
