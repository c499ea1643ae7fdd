"""The operator whose gradient goes elsewhere is taken out, and with it what only gradients read."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from memplan.proto.surrogates import DOMAIN, OP, without_surrogates


def through(value: str, result: str, *surrogate: str) -> onnx.NodeProto:
    return helper.make_node(OP, [value, *surrogate], [result], name=result, domain=DOMAIN)


def model(nodes: list[onnx.NodeProto], outputs: list[str]) -> onnx.ModelProto:
    def info(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])

    graph = helper.make_graph(nodes, "g", [info("x")], [info(name) for name in outputs])
    imports = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports)


def shown(found: onnx.ModelProto) -> list[str]:
    return [f"{n.op_type} {' '.join(n.input)} -> {n.output[0]}" for n in found.graph.node]


def test_readers_read_the_value_and_the_surrogate_is_gone() -> None:
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("Neg", ["x"], ["only_backward"]),
        through("a", "b", "only_backward"),
        through("b", "c"),
        helper.make_node("Exp", ["c"], ["y"]),
    ]
    found = model(nodes, ["y"])
    without_surrogates(found)
    assert shown(found) == ["Abs x -> a", "Exp a -> y"]
    assert [item.domain for item in found.opset_import] == [""]


def test_an_output_keeps_its_name() -> None:
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        through("a", "y"),
        through("a", "z"),
        through("x", "w"),
    ]
    found = model(nodes, ["y", "z", "w"])
    without_surrogates(found)
    assert shown(found) == ["Abs x -> y", "Identity y -> z", "Identity x -> w"]
    onnx.checker.check_model(found)


def test_bodies_are_seen() -> None:
    output = [helper.make_tensor_value_info("r", TensorProto.FLOAT, [2])]
    inner = [helper.make_node("Abs", ["a"], ["v"]), through("v", "r")]
    bodies = {
        key: helper.make_graph(inner, key, [], output) for key in ("then_branch", "else_branch")
    }
    nodes = [
        through("x", "a"),
        helper.make_node("IsNaN", ["x"], ["nan"]),
        helper.make_node("If", ["nan"], ["y"], **bodies),
    ]
    found = model(nodes, ["y"])
    without_surrogates(found)
    body = found.graph.node[1].attribute[0].g
    assert [(n.op_type, list(n.input), list(n.output)) for n in body.node] == [
        ("Abs", ["x"], ["r"])
    ]


def test_other_models_are_left_alone() -> None:
    nodes = [helper.make_node("Abs", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["unread"])]
    found = model(nodes, ["y"])
    before = found.SerializeToString()
    without_surrogates(found)
    assert found.SerializeToString() == before
