"""Uses of products of matrices, and of reductions."""

from __future__ import annotations

from collections.abc import Iterator

from memplan.ir.graph import Node
from memplan.passes.chunk.uses import SUM, WHOLE, Facts, Use, aligned, int_attribute, rule

LEAST_ROWS = 2
"""A single row is multiplied by another kernel (GEMV), whose sums are in another order."""
LEAST_SUMMANDS = 256
"""The runtime's CPU kernel sums a product in blocks of at most so many, the blocks one after the
other: ``Gemm(a, b, sum so far)`` in chunks of whole blocks adds in the order of the whole."""


@rule(":MatMul", "com.microsoft:FusedMatMul")
def matmul(facts: Facts, node: Node) -> Iterator[Use]:
    """Batches, rows of the first, columns of the second; along both inner axes, summands."""
    a, b = (facts.shape(t) for t in node.inputs[:2])
    rank = len(facts.shape(node.outputs[0]))
    if len(a) < 2 or len(b) < 2 or _transposes_batches(node):
        return
    for axis, size in enumerate(facts.shape(node.outputs[0])[:-2]):
        reads = (aligned(a, rank, axis, size), aligned(b, rank, axis, size))
        if reads != (WHOLE, WHOLE):
            yield Use(reads, (axis,))
    row, inner = _last_two(len(a), bool(int_attribute(node, "transA", 0)))
    inner_b, column = _last_two(len(b), bool(int_attribute(node, "transB", 0)))
    yield Use((row, WHOLE), (rank - 2,), least=LEAST_ROWS)
    yield Use((WHOLE, column), (rank - 1,), least=LEAST_ROWS)
    yield Use((inner, inner_b), (SUM,), least=LEAST_SUMMANDS)


@rule(":Gemm")
def gemm(facts: Facts, node: Node) -> Iterator[Use]:
    """Rows, columns, and summands, to which the third input is added once."""
    row, inner = _last_two(2, bool(int_attribute(node, "transA", 0)))
    inner_b, column = _last_two(2, bool(int_attribute(node, "transB", 0)))
    result = facts.shape(node.outputs[0])
    added = [aligned(facts.shape(t), 2, 0, result[0]) for t in node.inputs[2:]]
    yield Use((row, WHOLE, *added), (0,), least=LEAST_ROWS)
    added = [aligned(facts.shape(t), 2, 1, result[1]) for t in node.inputs[2:]]
    yield Use((WHOLE, column, *added), (1,), least=LEAST_ROWS)
    addend = 2 if facts.present(node, 2) else -1
    if addend >= 0 and node.attributes.get("beta", 1.0) != 1.0:
        return
    whole = (WHOLE for _ in node.inputs[2:])
    yield Use((inner, inner_b, *whole), (SUM,), addend=addend, least=LEAST_SUMMANDS)


def _transposes_batches(node: Node) -> bool:
    return any(int_attribute(node, name, 0) for name in ("transBatchA", "transBatchB"))


def _last_two(rank: int, transposed: bool) -> tuple[int, int]:
    """The last two axes, as they stand in the product."""
    return (rank - 1, rank - 2) if transposed else (rank - 2, rank - 1)


_REDUCTIONS = (
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
    *("ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"),
)


@rule(*(f":{op}" for op in _REDUCTIONS))
def reduction(facts: Facts, node: Node) -> Iterator[Use]:
    """The axes that stay; of a plain sum also those that go, as summands."""
    rank = len(facts.shape(node.inputs[0]))
    axes = facts.ints(node, 1, "axes")
    if axes is None or (not axes and int_attribute(node, "noop_with_empty_axes", 0)):
        return
    reduced = {axis % rank for axis in axes} if axes else set(range(rank))
    whole = tuple(WHOLE for _ in node.inputs[1:])
    keeps = int_attribute(node, "keepdims", 1)
    for axis in range(rank):
        if axis not in reduced:
            gone = 0 if keeps else sum(other < axis for other in reduced)
            yield Use((axis, *whole), (axis - gone,))
        elif node.op == "ReduceSum":
            yield Use((axis, *whole), (SUM,))


@rule(":ArgMax", ":ArgMin")
def arg_reduction(facts: Facts, node: Node) -> Iterator[Use]:
    """The axes that stay."""
    rank = len(facts.shape(node.inputs[0]))
    reduced = int_attribute(node, "axis", 0) % max(rank, 1)
    for axis in range(rank):
        if axis != reduced:
            gone = not int_attribute(node, "keepdims", 1) and reduced < axis
            yield Use((axis,), (axis - gone,))
