"""A value whose gradient goes elsewhere: one operator of graphs on their way to a training graph.

``BackwardThrough(value, surrogate)`` is ``value``, and its gradient is that of ``surrogate``, which
has the same shape and type; ``BackwardThrough(value)`` has none. The second is what ``detach``
does, the first what a straight-through estimator means. No runtime knows it: once gradients are
there, it is taken out, and no file has it.
"""

from __future__ import annotations

import onnx
from onnx import helper

from memplan.proto.edit import copied, remove_unread, rename_reads, replace_nodes
from memplan.proto.nodes import subgraphs

DOMAIN = "memplan.capture"
OP = "BackwardThrough"


def is_surrogate(node: onnx.NodeProto) -> bool:
    """Whether a node is the operator of this module."""
    return node.domain == DOMAIN and node.op_type == OP


def without_surrogates(model: onnx.ModelProto) -> None:
    """Let every reader read the value itself, in place, and drop what only gradients went through.

    A model without the operator is left as it is.
    """
    if not _bypass(model.graph):
        return
    remove_unread(model.graph)
    imports = [copied(item) for item in model.opset_import if item.domain != DOMAIN]
    del model.opset_import[:]
    model.opset_import.extend(imports)


def _bypass(graph: onnx.GraphProto) -> bool:
    """The same in a graph or body, but for what becomes unread; whether there was one."""
    found = False
    for node in graph.node:
        for body in subgraphs(node):
            found = _bypass(body) or found
    if not any(map(is_surrogate, graph.node)):
        return found
    outputs = {value.name for value in graph.output}
    made = {name for node in graph.node for name in node.output}
    values: dict[str, str] = {}
    finals: dict[str, str] = {}
    nodes = []
    for node in graph.node:
        rename_reads(node, values)
        if not is_surrogate(node):
            nodes.append(copied(node))
            continue
        value, result = node.input[0], node.output[0]
        if result not in outputs:
            values[result] = value
        elif value in made and value not in outputs and value not in finals:
            values[result], finals[value] = value, result
        else:
            nodes.append(helper.make_node("Identity", [value], [result], name=node.name))
    for node in nodes:
        rename_reads(node, finals)
        node.output[:] = [finals.get(name, name) for name in node.output]
    replace_nodes(graph, nodes)
    return True
