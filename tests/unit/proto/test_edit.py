"""Edits of protobuf graphs: what goes when nobody reads it, and what stays."""

import time

import onnx

from memplan.proto.edit import (
    copied,
    leave_out,
    remove_unread,
    rename_reads,
    replace_nodes,
)
from memplan.proto.names import NameAuthority, defined_names
from memplan.proto.nodes import free_names, names_read, operator_key


def graph(text: str) -> onnx.GraphProto:
    return onnx.parser.parse_graph(text)


def names(nodes: object) -> str:
    return " ".join(node.output[0] for node in nodes)  # type: ignore[attr-defined]


DEAD_TAIL = """g (float[4] x) => (float[4] y) <float w = {1}, float u = {2}>
{ a = Exp(x) b = Mul(a, w) c = Mul(b, u) y = Neg(a) }"""


def test_all_that_serves_no_output_goes() -> None:
    model = graph(DEAD_TAIL)
    remove_unread(model)
    assert names(model.node) == "a y"
    assert not model.initializer


def test_after_an_edit_what_was_dead_before_stays() -> None:
    model = graph(DEAD_TAIL)
    before = names_read(model.node)
    model.node[3].input[0] = "x"  # nobody but dead code reads a now
    remove_unread(model, read_before=before)
    assert names(model.node) == "a b c y"
    del model.node[2]
    remove_unread(model, read_before=before)
    assert names(model.node) == "y"
    assert not model.initializer


def test_nodes_that_stay_hold_what_they_read() -> None:
    model = graph(DEAD_TAIL)
    remove_unread(model, stays=lambda node: node.output[0] == "b")
    assert names(model.node) == "a b y"
    assert [tensor.name for tensor in model.initializer] == ["w"]


def test_the_default_value_of_an_input_stays() -> None:
    model = graph("g (float[4] x, float w) => (float[4] y) <float w = {1}> { y = Neg(x) }")
    remove_unread(model)
    assert [tensor.name for tensor in model.initializer] == ["w"]


def test_value_infos_of_removed_tensors_go() -> None:
    model = graph("g (float[4] x) => (float[4] y) <float[4] a> { a = Exp(x) y = Neg(x) }")
    remove_unread(model)
    assert not model.value_info


def test_what_bodies_read_is_read() -> None:
    model = graph(
        """g (float[4] x, bool c) => (float[4] y) {
          a = Exp(x) b = Neg(x)
          y = If (c) <then_branch = t () => (float[4] r) { s = Abs(a) r = Neg(s) },
                      else_branch = e () => (float[4] q) { q = Identity(x) }> }"""
    )
    body = model.node[2].attribute[0].g
    assert free_names(body) == ("a",)
    remove_unread(model)
    assert names(model.node) == "a y"
    assert set(defined_names(model)) >= {"x", "c", "a", "y", "s", "r", "q"}
    assert "s" not in set(defined_names(model, bodies=False))


def test_an_absent_last_output_is_not_listed() -> None:
    node = onnx.helper.make_node("LayerNormalization", ["x", "s"], ["y", "mean", "deviation"])
    leave_out(node, {"mean"})
    assert list(node.output) == ["y", "", "deviation"]
    leave_out(node, {"deviation"})
    assert list(node.output) == ["y"]
    leave_out(node, {"y"})
    assert list(node.output) == [""]


def test_outputs_that_choose_the_kernel_stay_listed() -> None:
    node = onnx.helper.make_node("MaxPool", ["x"], ["y", "indices"])
    leave_out(node, {"indices"}, fewest=2)
    assert list(node.output) == ["y", ""]


def test_nodes_of_the_graph_itself_may_replace_its_nodes() -> None:
    model = graph(DEAD_TAIL)
    replace_nodes(model, reversed(model.node))
    assert names(model.node) == "y c b a"
    copy = copied(model.node[0])
    del model.node[:]
    assert operator_key(copy) == ":Neg"


def test_fresh_names_of_one_stem_take_linear_time() -> None:
    authority = NameAuthority(["a", "a_2"])
    assert [authority.fresh("a") for _ in range(3)] == ["a_1", "a_3", "a_4"]
    assert authority.fresh("b", first=2) == "b"
    assert authority.fresh("b", first=2) == "b_2"
    start = time.process_time()
    for _ in range(20_000):
        authority.fresh("node")
    assert time.process_time() - start < 2


def test_readers_are_renamed_inside_bodies_unless_the_name_is_their_own() -> None:
    node = graph("""g (float[4] x, float[4] z, bool c) => (float[4] u) { u = If<
        then_branch = t () => (float[4] r)
            { a = Add(x, z) r = If<
                then_branch = tt () => (float[4] p) { p = Neg(x) },
                else_branch = ee (float[4] x) => (float[4] q) { q = Neg(x) }
            >(c) },
        else_branch = e () => (float[4] x) { b = Neg(x) x = Exp(b) }
    >(c) }""").node[0]
    rename_reads(node, {"x": "x2", "c": "c2"})
    assert list(node.input) == ["c2"]
    then, otherwise = (attribute.g for attribute in node.attribute)
    assert list(then.node[0].input) == ["x2", "z"]
    assert list(then.node[1].input) == ["c2"]
    deep, own = (attribute.g for attribute in then.node[1].attribute)
    assert list(deep.node[0].input) == ["x2"]
    assert list(own.node[0].input) == ["x"]
    # Until a body defines the name, it means the one outside.
    assert [list(n.input) for n in otherwise.node] == [["x2"], ["b"]]
    assert otherwise.output[0].name == "x"
