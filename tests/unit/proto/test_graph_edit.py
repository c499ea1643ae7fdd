"""A graph that is being changed: what each call does, and that the model before stays as it is."""

import numpy as np
import onnx
import pytest
from onnx import helper

from memplan.proto.graph_edit import GraphEdit
from memplan.proto.nodes import is_constant

TEXT = """<ir_version: 3, opset_import: ["" : 20]>
g (float[4] x, bool c, float[4] unused) => (float[4] y, float[4] z) <float w = {1}> {
    k = Constant <value_float: float = 2.0> ()
    [a] a = Exp(x)
    [b] b = Mul(a, w)
    [d] d = Mul(b, k)
    [i] y = If (c) <then_branch = t () => (float[4] r) { r = Neg(b) },
                    else_branch = e () => (float[4] q) { q = Identity(d) }>
    [z] z = Abs(b)
}"""
A, B, D, IF, Z = range(5)


@pytest.fixture
def model() -> onnx.ModelProto:
    return onnx.parser.parse_model(TEXT)


def made(model: onnx.ModelProto) -> str:
    return " ".join(node.output[0] for node in model.graph.node)


def neg(source: str, name: str) -> onnx.NodeProto:
    return helper.make_node("Neg", [source], [name], name=name)


def test_an_edit_that_does_nothing_gives_a_copy(model: onnx.ModelProto) -> None:
    found = GraphEdit(model).finished(lambda _: True)
    assert found == model
    assert found is not model


def test_the_model_before_stays_as_it_is(model: onnx.ModelProto) -> None:
    before = model.SerializeToString(deterministic=True)
    edit = GraphEdit(model)
    edit.node(B).input[1] = edit.constant(np.float32(3), "w")
    edit.node(B).name = "again"
    edit.replace_uses("a", "x")
    edit.remove(A)
    edit.drop_outputs({"z"})
    found = edit.finished(is_constant)
    assert model.SerializeToString(deterministic=True) == before
    assert list(found.graph.node[1].input) == ["x", "w_1"]
    assert [tensor.name for tensor in found.graph.initializer] == ["w_1"]
    assert found.ir_version == 4  # an initializer that is no input
    assert edit.original(B).name == "b"


def test_nodes_are_numbered_without_constants_and_stand_where_they_were_put(
    model: onnx.ModelProto,
) -> None:
    edit = GraphEdit(model)
    edit.put_behind(B, neg("b", "b2"))
    edit.put_behind(B, neg("b2", "b3"))
    edit.put_before(B, neg("a", "a2"), neg("a2", "a3"))
    edit.put_instead(D, neg("b3", "d"))
    assert " ".join(node.output[0] for node in edit.nodes()) == "k a a2 a3 b b2 b3 d y z"
    assert edit.origin == {"b2": B, "b3": B, "a2": B, "a3": B, "d": D}
    assert made(edit.finished()) == "k a a2 a3 b b2 b3 d y z"


def test_readers_in_bodies_read_something_else_too(model: onnx.ModelProto) -> None:
    edit = GraphEdit(model)
    edit.remove(D)
    edit.remove(B)
    edit.replace_uses("d", "b")
    edit.replace_uses("b", "a")  # and so what stood for d
    found = edit.finished(is_constant)
    assert made(found) == "a y z"
    assert [body.g.node[0].input[0] for body in found.graph.node[1].attribute] == ["a", "a"]
    assert found.graph.node[2].input[0] == "a"


def test_what_is_renamed_is_so_where_it_is_made_and_read(model: onnx.ModelProto) -> None:
    edit = GraphEdit(model)
    edit.remove(Z)
    edit.rename("b", "z")
    edit.replace_uses("d", "b")
    found = edit.finished()
    assert made(found) == "k a z d y"
    assert [body.g.node[0].input[0] for body in found.graph.node[4].attribute] == ["z", "z"]


def test_nothing_goes_but_what_the_edit_left_without_a_reader(model: onnx.ModelProto) -> None:
    model.graph.node.append(neg("x", "dead"))
    edit = GraphEdit(model)
    edit.node(IF).CopyFrom(neg("a", "y"))
    assert edit.no_longer_read() == {"c", "d"}
    edit.drop_inputs(edit.no_longer_read())
    found = edit.finished(lambda _: True)
    assert made(found) == "a b y z dead"
    assert [value.name for value in found.graph.input] == ["x", "unused"]


def test_constants_stand_ahead_of_nodes_that_are_written_anew(model: onnx.ModelProto) -> None:
    edit = GraphEdit(model)
    edit.write([edit.original(A), edit.original(B), neg("b", "z"), neg("b", "y")])
    assert made(edit.finished()) == "k a b z y"
    assert edit.fresh("r") == "r_1"
    assert edit.fresh("i") == "i_1"
