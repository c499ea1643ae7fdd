"""Dropouts that ONNX Runtime would leave out.

From the optimization level BASIC on, ONNX Runtime (1.31.1) takes a ``Dropout`` whose mask nobody
reads for one of inference, whatever its ``training_mode`` says. In a training graph that is one
that no gradient flows through, as that of a teacher. It is written with other operators.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from memplan.proto.edit import copied, replace_nodes
from memplan.proto.names import NameAuthority, defined_names
from memplan.proto.nodes import is_standard, names_read

_RATIO = 0.5


def without_unread_masks(model: onnx.ModelProto) -> None:
    """Write out such dropouts of the main graph, in place, where their type is known."""
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
            nodes += _written_out(node, types[node.input[0]], constants, names, graph)
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


def _written_out(
    node: onnx.NodeProto,
    kind: int,
    constants: dict[str, onnx.TensorProto],
    names: NameAuthority,
    graph: onnx.GraphProto,
) -> list[onnx.NodeProto]:
    """What is kept is drawn in float32, as the operator does it."""
    given = node.input[1]
    ratio = float(numpy_helper.to_array(constants[given])) if given else _RATIO
    numbers = {}
    for what, value, own in (
        ("ratio", ratio, onnx.TensorProto.FLOAT),
        ("share", 1 - ratio, kind),
        ("zero", 0.0, kind),
    ):
        numbers[what] = names.fresh(f"{node.name}/{what}")
        array = np.asarray(value, helper.tensor_dtype_to_np_dtype(own))
        graph.initializer.append(numpy_helper.from_array(array, numbers[what]))
    drawn, kept, whole = (names.fresh(f"{node.name}/{what}") for what in ("draw", "kept", "whole"))
    like = helper.make_node("RandomUniformLike", [node.input[0]], [drawn], drawn, dtype=1)
    for item in node.attribute:
        if item.name == "seed":
            like.attribute.append(helper.make_attribute("seed", float(item.i)))
    made = [
        like,
        helper.make_node("GreaterOrEqual", [drawn, numbers["ratio"]], [kept], kept),
        helper.make_node("Div", [node.input[0], numbers["share"]], [whole], whole),
        helper.make_node("Where", [kept, whole, numbers["zero"]], [node.output[0]], node.name),
    ]
    for item in made:
        item.metadata_props.extend(node.metadata_props)
    return made
