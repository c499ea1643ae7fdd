"""What is known of tensors that the reference does not have.

Their shapes and types follow from those of what they are made of, by ONNX's own inference: the
passes state what they know of their new tensors, and the proof finds out the same by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import onnx

from memplan.equivalence.terms import UNKNOWN, Fact, Terms
from memplan.errors import MemplanError
from memplan.proto.nodes import subgraphs
from memplan.shapes.one_node import infer_types
from memplan.shapes.tensor_type import TensorType

Content = tuple[np.dtype[Any], tuple[int, ...], bytes]
"""Element type, shape, content."""


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
    place: dict[str, int] = {}
    for name in node.input:
        if name:
            place.setdefault(name, len(place))
    bare = onnx.NodeProto(op_type=node.op_type, domain=node.domain, attribute=node.attribute)
    bare.input.extend(f"x{place[name]}" if name else "" for name in node.input)
    bare.output.extend(f"y{k}" if name else "" for k, name in enumerate(node.output))
    reads = [names[name] for name in place]
    values = [terms.value(term) for term in reads]
    return _inferred(
        bare.SerializeToString(deterministic=True),
        tuple(terms.fact(term) for term in reads),
        tuple(v if v is None else (v.dtype, v.shape, v.tobytes()) for v in values),
        opset,
    )


@lru_cache(maxsize=4096)
def _inferred(
    content: bytes, facts: tuple[Fact, ...], values: tuple[Content | None, ...], opset: int
) -> tuple[Fact, ...]:
    """Of a node that reads ``x0``, ``x1`` ...: a graph in chunks has thousands of few kinds."""
    node = onnx.NodeProto.FromString(content)
    types = {f"x{k}": TensorType(fact.dtype, fact.shape) for k, fact in enumerate(facts)}
    known = {
        f"x{k}": np.frombuffer(value[2], value[0]).reshape(value[1])
        for k, value in enumerate(values)
        if value is not None
    }
    try:
        found = infer_types(node, types, known, opset, apart=True)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError):
        return (UNKNOWN,) * len(node.output)
    except (MemplanError, RuntimeError, ValueError):
        return (UNKNOWN,) * len(node.output)
    return tuple(Fact(each.dtype, each.sizes) for each in found)
