"""What comes before a loop and can be made again inside it: the product of inputs and weights.

An LSTM's gates take X·Wᵀ + b, computed for all steps at once. Where a step is run again in the
backward, keeping that sequence would cost as much as the gates; a step of X and W give its slice.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx
from onnx import helper

from memplan.autodiff.emit.emitter import Emitter
from memplan.ir.graph import Phase
from memplan.proto.elements import tensor_bytes
from memplan.proto.loop_node import Slices
from memplan.proto.metadata import FORWARD_KEY, PHASE_KEY
from memplan.shapes.tensor_type import TensorType


@dataclass(frozen=True, slots=True)
class Projection:
    """``node`` makes one slice of a sequence from one slice of ``source``, which it reads under
    the name ``formal``."""

    source: Slices
    formal: str
    node: onnx.NodeProto


def find_projection(outer: Emitter, item: Slices, inner: str) -> Projection | None:
    """How to make slice ``inner`` of a sequence within a step; None where it is not a product, or
    where that would keep more in memory."""
    made = outer.makers.get(item.name)
    if made is None or item.axis != 0:
        return None
    found = _product(outer, made) if made.op_type == "Reshape" else _matmul(outer, made)
    if found is None:
        return None
    source, op, others, attributes = found
    whole, given = outer.tensor(item.name).type, outer.tensor(source).type
    if whole.shape is None or given.shape is None or len(given.shape) != 3:
        return None
    if len(whole.shape) != 3 or whole.shape[:2] != given.shape[:2]:
        return None
    if _step_bytes(given) > _step_bytes(whole):
        return None
    formal = outer.fresh(f"{inner}/source")
    node = helper.make_node(
        op, [formal, *others], [inner], name=outer.fresh(f"{made.name}/recompute")
    )
    node.attribute.extend(attributes)
    helper.set_metadata_props(node, {PHASE_KEY: Phase.BACKWARD, FORWARD_KEY: made.name})
    return Projection(Slices(source, 0, item.reversed_), formal, node)


_Found = tuple[str, str, list[str], list[onnx.AttributeProto]]


def _product(outer: Emitter, made: onnx.NodeProto) -> _Found | None:
    """``Reshape(Gemm(Reshape(X), W, b))``, as the recurrent operators are written out."""
    product = outer.makers.get(made.input[0])
    if product is None or product.op_type != "Gemm":
        return None
    flat = outer.makers.get(product.input[0])
    given = {item.name: item.i for item in product.attribute}
    if flat is None or flat.op_type != "Reshape" or given.get("transA"):
        return None
    others = [str(name) for name in product.input[1:]]
    if any(
        len(outer.tensor(name).type.shape or (0, 0, 0)) > 2 - k for k, name in enumerate(others)
    ):
        return None
    return flat.input[0], "Gemm", others, list(product.attribute)


def _matmul(outer: Emitter, made: onnx.NodeProto) -> _Found | None:
    """``MatMul(X, W)``."""
    if made.op_type != "MatMul" or len(outer.tensor(made.input[1]).type.shape or ()) != 2:
        return None
    return made.input[0], "MatMul", [made.input[1]], []


def _step_bytes(found: TensorType) -> int:
    """Bytes of one step, with symbolic dimensions taken as 1."""
    shape = (dim if isinstance(dim, int) else 1 for dim in (found.shape or ())[1:])
    return tensor_bytes(found.dtype, shape)
