"""What is known of tensors that the reference does not have.

Their shapes and types follow from those of what they are made of, by ONNX's own inference: the
passes state what they know of their new tensors, and the proof finds out the same by itself.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from memplan.equivalence.terms import UNKNOWN, Fact, Terms
from memplan.errors import MemplanError
from memplan.proto.nodes import subgraphs
from memplan.shapes.one_node import infer_types
from memplan.shapes.tensor_type import TensorType


def inferred(
    node: onnx.NodeProto, names: Mapping[str, int], terms: Terms, opset: int
) -> tuple[Fact, ...]:
    """What is known of a node's outputs by what is known of the terms that it reads.

    Args:
        node: of the main graph; of one with bodies nothing is said.
        names: terms by the names that it reads.
        terms: what is known of them, and the contents of small constants.
        opset: of the standard operators.
    """
    if subgraphs(node):
        return (UNKNOWN,) * len(node.output)
    reads = {name: names[name] for name in node.input if name}
    facts = ((name, terms.fact(term)) for name, term in reads.items())
    values = ((name, terms.value(term)) for name, term in reads.items())
    try:
        found = infer_types(
            node,
            {name: TensorType(fact.dtype, fact.shape) for name, fact in facts},
            {name: value for name, value in values if value is not None},
            opset,
        )
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, MemplanError):
        return (UNKNOWN,) * len(node.output)
    return tuple(Fact(each.dtype, each.sizes) for each in found)
