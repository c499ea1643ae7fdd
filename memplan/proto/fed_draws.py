"""Random nodes of a graph as arithmetic on inputs that bring their draws.

A graph that draws cannot be run twice alike, or beside another. Here every random node, and every
mask that comes from a counter, reads what it would have drawn: numbers of a uniform distribution
from 0 to 1, or of the standard normal one.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import helper, numpy_helper

from memplan.proto.counter_masks import counter_masks
from memplan.proto.edit import replace_nodes
from memplan.proto.nodes import inner_nodes

UNIFORM, NORMAL = "uniform", "normal"
_FLOAT = onnx.TensorProto.FLOAT
_FAMILIES = {
    "Dropout": UNIFORM,
    "Bernoulli": UNIFORM,
    "RandomUniform": UNIFORM,
    "RandomUniformLike": UNIFORM,
    "RandomNormal": NORMAL,
    "RandomNormalLike": NORMAL,
    "Multinomial": "",
}
"""Random operators, and what they draw; nothing that can be given to them: no family."""


def family(node: onnx.NodeProto) -> str:
    """What a random node draws; empty: nothing that can be given to it."""
    return _FAMILIES.get(node.op_type, UNIFORM)  # masks of a counter are compared


def random_nodes(graph: onnx.GraphProto) -> list[int]:
    """Places of the nodes that draw, and of those that make a mask of a counter; not in bodies."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    masks = counter_masks(graph)
    return [
        k
        for k, node in enumerate(graph.node)
        if (node.output and node.output[0] in masks) or _is_random(node, constants)
    ]


def cannot_be_fed(graph: onnx.GraphProto) -> str:
    """A random operator that cannot be given its draws: by what it is, or as it is in a body. Empty
    if there is none."""
    strange = [graph.node[k].op_type for k in random_nodes(graph) if not family(graph.node[k])]
    inside = [n.op_type for node in graph.node for n in inner_nodes(node) if n.op_type in _FAMILIES]
    return next(iter(strange + inside), "")


def feed_draws(graph: onnx.GraphProto, names: Mapping[int, str]) -> None:
    """Replace random nodes, in place.

    Args:
        graph: a main graph.
        names: place of a node (:func:`random_nodes`) → the new float32 input with its draw.
    """
    masks = counter_masks(graph)
    made: list[onnx.NodeProto] = []
    for index, node in enumerate(graph.node):
        if index not in names:
            made.append(node)
            continue
        name = names[index]
        graph.input.add().CopyFrom(helper.make_tensor_value_info(name, _FLOAT, None))
        share = masks.get(node.output[0])
        made += _arithmetic(node, name) if share is None else _compared(node, name, share)
    replace_nodes(graph, made)


def _is_random(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> bool:
    if node.domain or node.op_type not in _FAMILIES:
        return False
    if node.op_type != "Dropout":
        return True
    ratio, training = ([*node.input, "", ""][k] for k in (1, 2))
    if not training or (training in constants and not _number(constants[training])):
        return False
    return ratio not in constants or _number(constants[ratio]) > 0


def _number(tensor: onnx.TensorProto) -> float:
    return float(numpy_helper.to_array(tensor).reshape(()))


def _arithmetic(node: onnx.NodeProto, draw: str) -> list[onnx.NodeProto]:
    """What a random node computes from its draw."""
    out = node.output[0]
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}

    def like(name: str, result: str) -> onnx.NodeProto:
        if "dtype" in given:
            return helper.make_node("Cast", [name], [result], to=given["dtype"])
        if node.input:
            return helper.make_node("CastLike", [name, node.input[0]], [result])
        return helper.make_node("Cast", [name], [result], to=_FLOAT)

    def constant(value: float, name: str) -> onnx.NodeProto:
        return helper.make_node("Constant", [], [name], value_float=value)

    if node.op_type == "Dropout":
        return _dropout(node, draw)
    if node.op_type == "Bernoulli":
        return [
            constant(1.0, f"{draw}/one"),
            helper.make_node("Cast", [node.input[0]], [f"{draw}/p"], to=_FLOAT),
            helper.make_node("Sub", [f"{draw}/one", f"{draw}/p"], [f"{draw}/rest"]),
            helper.make_node("Greater", [draw, f"{draw}/rest"], [f"{draw}/kept"]),
            like(f"{draw}/kept", out),
        ]
    if node.op_type.startswith("RandomUniform"):
        begin = float(given.get("low", 0.0))
        factor = float(given.get("high", 1.0)) - begin
    else:
        begin, factor = float(given.get("mean", 0.0)), float(given.get("scale", 1.0))
    return [
        constant(factor, f"{draw}/factor"),
        constant(begin, f"{draw}/begin"),
        helper.make_node("Mul", [draw, f"{draw}/factor"], [f"{draw}/wide"]),
        helper.make_node("Add", [f"{draw}/wide", f"{draw}/begin"], [f"{draw}/value"]),
        like(f"{draw}/value", out),
    ]


def _compared(node: onnx.NodeProto, draw: str, share: float) -> list[onnx.NodeProto]:
    """A mask of a counter, out of the draw."""
    return [
        helper.make_node("Constant", [], [f"{draw}/ratio"], value_float=share),
        helper.make_node("Greater", [draw, f"{draw}/ratio"], [node.output[0]]),
    ]


def _dropout(node: onnx.NodeProto, draw: str) -> list[onnx.NodeProto]:
    x, ratio, training = [*node.input, "", ""][:3]
    kept = node.output[1] if len(node.output) > 1 and node.output[1] else f"{draw}/kept"
    first = helper.make_node("Constant", [], [f"{draw}/ratio"], value_float=0.5)
    if ratio:
        first = helper.make_node("Cast", [ratio], [f"{draw}/ratio"], to=_FLOAT)
    begun = [first]
    if training:  # computed: it may say that nothing is dropped
        first.output[0] = f"{draw}/if_training"
        begun.append(helper.make_node("Cast", [training], [f"{draw}/training"], to=_FLOAT))
        inputs = [f"{draw}/if_training", f"{draw}/training"]
        begun.append(helper.make_node("Mul", inputs, [f"{draw}/ratio"]))
    return [
        *begun,
        helper.make_node("Constant", [], [f"{draw}/one"], value_float=1.0),
        helper.make_node("Constant", [], [f"{draw}/zero"], value_float=0.0),
        helper.make_node("Sub", [f"{draw}/one", f"{draw}/ratio"], [f"{draw}/share"]),
        helper.make_node("CastLike", [f"{draw}/share", x], [f"{draw}/divisor"]),
        helper.make_node("CastLike", [f"{draw}/zero", x], [f"{draw}/nothing"]),
        helper.make_node("Greater", [draw, f"{draw}/ratio"], [kept]),
        helper.make_node("Div", [x, f"{draw}/divisor"], [f"{draw}/scaled"]),
        helper.make_node("Where", [kept, f"{draw}/scaled", f"{draw}/nothing"], [node.output[0]]),
    ]
