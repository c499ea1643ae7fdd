"""A model without its weights, for whoever looks at its structure alone."""

from __future__ import annotations

import math

import onnx

_SMALL = 4096


def is_small(elements: float) -> bool:
    """Whether a tensor of so many elements may be looked into: shapes are small, weights are not.

    That is what inference and folding are given as values.
    """
    return elements <= _SMALL


def has_small_content(tensor: onnx.TensorProto) -> bool:
    """Whether the elements of a constant stand in the file itself, and are few."""
    external = tensor.data_location == onnx.TensorProto.EXTERNAL
    return not external and is_small(math.prod(tensor.dims))


def without_weights(bound: onnx.ModelProto, *, statements: bool) -> onnx.ModelProto:
    """The nodes, inputs and small constants of ``bound``: what inference needs, and no weights.

    Large and sparse constants (whose shapes inference does not know) become inputs.
    ``statements``: with the shapes that the file states for computed tensors.
    """
    graph = bound.graph
    result = onnx.ModelProto(ir_version=bound.ir_version)
    result.opset_import.extend(bound.opset_import)
    result.graph.name = graph.name or "graph"
    result.graph.node.extend(graph.node)
    result.graph.input.extend(graph.input)
    given = {value.name for value in graph.input}
    sparse = [(s.values.name, s.values.data_type, s.dims) for s in graph.sparse_initializer]
    large = [(t.name, t.data_type, t.dims) for t in graph.initializer if not has_small_content(t)]
    result.graph.initializer.extend(filter(has_small_content, graph.initializer))
    result.graph.input.extend(
        onnx.helper.make_tensor_value_info(name, dtype, dims)
        for name, dtype, dims in (*sparse, *large)
        if name not in given
    )
    result.graph.output.extend(graph.output)
    if statements:
        result.graph.value_info.extend(graph.value_info)
        return result
    for value in result.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return result
