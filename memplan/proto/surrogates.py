"""Values whose gradient goes elsewhere: operators of graphs on their way to a training graph.

``BackwardThrough(value, surrogate)`` is ``value``, and its gradient is that of ``surrogate``, which
has the same shape and type; ``BackwardThrough(value)`` has none. The second is what ``detach``
does, the first what a straight-through estimator means.

``WithGradient(ys..., xs..., dxs...)`` gives ``ys``, and has a backward of its own: ``dxs`` are the
gradients of ``xs``, computed from ``GradientOf(y)``, which stands for the gradient of a ``y``.
Attributes: ``number``, which its ``GradientOf`` share; ``ys`` and ``xs``, how many they are;
``label``, what it is to the user. ``GradientOf`` has ``slot``, which of the ys it is of.

No runtime knows them: once gradients are there, they are taken out, and no file has them.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import helper

from memplan.errors import ModelError
from memplan.proto.edit import copied, remove_unread, rename_reads, replace_nodes
from memplan.proto.nodes import all_nodes, subgraphs

DOMAIN = "memplan.capture"
OP = "BackwardThrough"
WITH_GRADIENT = "WithGradient"
GRADIENT_OF = "GradientOf"


def is_surrogate(node: onnx.NodeProto) -> bool:
    """Whether a node is an operator of this module: output k has the type of input k."""
    return node.domain == DOMAIN and node.op_type in (OP, WITH_GRADIENT, GRADIENT_OF)


def without_surrogates(model: onnx.ModelProto) -> None:
    """Let every reader read the value itself, in place, and drop what only gradients went through.

    A model without the operators is left as it is.

    Raises:
        ModelError: a backward of the user's own computes something beside gradients.
    """
    if not _bypass(model.graph):
        return
    remove_unread(model.graph)
    for node in all_nodes(model.graph.node):
        if is_surrogate(node):
            label = next(item.s.decode() for item in node.attribute if item.name == "label")
            raise ModelError(
                f"the backward of the {label} changes something beside gradients",
                "compute that in the forward part: a captured backward gives gradients alone",
            )
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
        if not is_surrogate(node) or node.op_type == GRADIENT_OF:
            nodes.append(copied(node))
            continue
        for value, result in _pairs(node):
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


def _pairs(node: onnx.NodeProto) -> Iterator[tuple[str, str]]:
    """Each value and the result that is equal to it."""
    return ((value, out) for value, out in zip(node.input, node.output, strict=False) if out)
