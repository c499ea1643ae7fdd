"""Dropouts that ONNX Runtime would leave out.

From the optimization level BASIC on, ONNX Runtime (1.31.1) takes a ``Dropout`` whose mask nobody
reads for one of inference, whatever its ``training_mode`` says. In a training graph that is one
that no gradient flows through, as that of a teacher. There, a ``Where`` is made to read the mask.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from memplan.proto.edit import copied, replace_nodes
from memplan.proto.names import NameAuthority, defined_names
from memplan.proto.nodes import is_standard, names_read


def without_unread_masks(model: onnx.ModelProto) -> None:
    """Have the masks of such dropouts of the main graph read, in place, where their type is
    known."""
    graph = model.graph
    read = names_read(graph.node) | {value.name for value in graph.output}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*graph.input, *graph.value_info, *graph.output)
    }
    names = NameAuthority(defined_names(graph))
    nodes = []
    for node in graph.node:
        if _is_lost(node, read, constants) and types.get(node.input[0]):
            nodes += _with_read_mask(node, types[node.input[0]], names, graph)
        else:
            nodes.append(copied(node))
    replace_nodes(graph, nodes)


def _is_lost(node: onnx.NodeProto, read: set[str], constants: dict[str, onnx.TensorProto]) -> bool:
    if node.op_type != "Dropout" or not is_standard(node.domain) or len(node.input) < 3:
        return False
    ratio, training = node.input[1:3]
    if training not in constants or (ratio and ratio not in constants):
        return False
    unread = len(node.output) < 2 or node.output[1] not in read
    return unread and bool(numpy_helper.to_array(constants[training]))


def _with_read_mask(
    node: onnx.NodeProto, kind: int, names: NameAuthority, graph: onnx.GraphProto
) -> list[onnx.NodeProto]:
    """Zeros once more where the mask has them."""
    zero, mask, whole = (names.fresh(f"{node.name}/{what}") for what in ("zero", "mask", "whole"))
    array = np.zeros((), helper.tensor_dtype_to_np_dtype(kind))
    graph.initializer.append(numpy_helper.from_array(array, zero))
    dropout = copied(node)
    dropout.output[:] = [whole, mask]
    reader = helper.make_node("Where", [mask, whole, zero], [node.output[0]], mask)
    reader.metadata_props.extend(node.metadata_props)
    return [dropout, reader]
