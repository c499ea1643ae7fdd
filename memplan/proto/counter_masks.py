"""Masks that are compared out of a counter, as :mod:`memplan.autodiff.counter_dropouts` makes them.

They are known by what they are, not by a mark: ONNX Runtime's optimizer drops marks.
"""

from __future__ import annotations

import onnx
from onnx import numpy_helper

DROPOUT_STEP = "dropout_step"
"""The counter, a graph input: an int64 scalar, of which the first is 1."""
_RANGE = 1 << 32


def counter_masks(graph: onnx.GraphProto) -> dict[str, float]:
    """Masks of a counter → the share of elements that they drop: the nodes ``Greater`` that compare
    what the counter leads to with a uint32 number."""
    counters = {v.name for v in graph.input if v.name.startswith(DROPOUT_STEP)}
    if not counters:
        return {}
    bounds = {
        tensor.name: int(numpy_helper.to_array(tensor).reshape(()))
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.UINT32 and not tensor.dims
    }
    counted, found = set(counters), dict[str, float]()
    for node in graph.node:
        if counted.isdisjoint(node.input):
            continue
        bound = bounds.get(node.input[1]) if node.op_type == "Greater" else None
        if bound is None:
            counted.update(node.output)
        else:
            found[node.output[0]] = (bound + 1) / _RANGE
    return found
