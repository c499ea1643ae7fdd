"""Symbolic dimensions: which there are, and what they come to once some are bound."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

import onnx

from memplan.errors import ModelError, UsageError
from memplan.proto.edit import copied
from memplan.proto.nodes import all_graphs
from memplan.shapes.infer import declared_values

LARGEST_DIM = 2**63 - 1
_LONGEST_EXPRESSION = 1000
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def symbolic_dims(model: onnx.ModelProto) -> dict[str, str]:
    """Every symbolic dimension of the graph inputs, with the first input that has it."""
    found: dict[str, str] = {}
    initialized = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name in initialized:
            continue
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                found.setdefault(dim.dim_param, value.name)
    return found


def bind_dims(model: onnx.ModelProto, dims: Mapping[str, int]) -> onnx.ModelProto:
    """A copy of ``model`` in which every symbolic dimension that ``dims`` decides is a number.

    Raises:
        UsageError: ``dims`` names a dimension that no graph input has.
        ModelError: an input dimension stays unknown.
    """
    known = symbolic_dims(model)
    for name in dims:
        if name not in known:
            offered = ", ".join(sorted(known)) or "none: all input shapes are static"
            raise UsageError(
                f"--dim {name}: no input has a dimension of that name",
                f"symbolic dimensions of this model: {offered}",
            )
    bound = copied(model)
    if dims:
        _bind_values(bound.graph, dims)
    missing = list(symbolic_dims(bound) if dims else known)
    if missing:
        raise ModelError(
            f"dimension '{missing[0]}' of input '{known[missing[0]]}' is symbolic",
            "bind it: " + " ".join(f"--dim {name}=..." for name in missing),
        )
    return bound


def _bind_values(graph: onnx.GraphProto, dims: Mapping[str, int]) -> None:
    values = (value for here in all_graphs(graph) for value in declared_values(here))
    for value in values:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                number = evaluate_dim(dim.dim_param, dims)
                if number is not None:
                    dim.dim_value = number


def evaluate_dim(text: str, dims: Mapping[str, int]) -> int | None:
    """The value of a dimension expression such as ``2*N + 1``, or None if it is not decided."""
    if text in dims:
        return dims[text]
    if not dims or len(text) > _LONGEST_EXPRESSION:
        return None
    try:
        number = _evaluate(ast.parse(text, mode="eval").body, dims)
    except (SyntaxError, KeyError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None
    return number if 0 <= number <= LARGEST_DIM else None


def _evaluate(tree: ast.expr, dims: Mapping[str, int]) -> int:
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
        return tree.value
    if isinstance(tree, ast.Name):
        return dims[tree.id]
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
        return _OPERATORS[type(tree.op)](_evaluate(tree.left, dims), _evaluate(tree.right, dims))
    raise ValueError("not a dimension expression")
