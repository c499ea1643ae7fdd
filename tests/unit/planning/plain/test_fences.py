"""Fences keep recomputed nodes apart."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper

from helpers.graphs import parse
from memplan.errors import UsageError
from memplan.planning.plain.fences import data_inputs, fence_clones, fence_maker, read_instead
from memplan.proto.metadata import CHUNK_KEY


def clone(node: onnx.NodeProto, output: str, inputs: list[str] | None = None) -> onnx.NodeProto:
    """The node again, marked as recomputed."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.name = copy.output[0] = output
    if inputs is not None:
        del copy.input[:]
        copy.input.extend(inputs)
    helper.set_metadata_props(copy, {"memplan.role": "recompute", "memplan.of": node.name})
    return copy


MODEL = parse(
    """g (float[N, 4] x, float[4] w) => (float[N, 4] y) {
      a = Mul(x, w)  b = Exp(a)  y = Mul(b, a)
    }"""
)


def fenced(extra: list[onnx.NodeProto]) -> tuple[list[onnx.NodeProto], int]:
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in MODEL.graph.node]
    return fence_clones([*nodes, *extra], fence_maker(MODEL.graph))


def test_only_the_first_of_a_chain_is_fenced() -> None:
    a, b, _ = MODEL.graph.node
    nodes, fences = fenced([clone(a, "a2"), clone(b, "b2", ["a2"])])
    assert fences == 1
    assert [n.op_type for n in nodes] == ["Mul", "Exp", "Mul", "Unsqueeze", "Mul", "Exp"]
    assert list(nodes[4].input) == [nodes[3].output[0], "w"]
    assert list(nodes[5].input) == ["a2"]


def test_slices_for_chunks_read_through_fences_of_their_own() -> None:
    """The runtime makes one Split of slices of a tensor, and so all chunks at once."""
    cuts = [
        helper.make_node("Slice", ["a", f"from{k}", f"to{k}", "axis"], [f"s{k}"], name=f"s{k}")
        for k in range(3)
    ]
    for place, cut in enumerate(cuts):
        helper.set_metadata_props(cut, {CHUNK_KEY: str(place)})
    nodes, fences = fenced(cuts)
    assert fences == 2
    assert len({node.input[0] for node in nodes if node.op_type == "Slice"}) == 3


def test_equal_nodes_of_chunks_stay_apart() -> None:
    fills = [helper.make_node("Expand", ["w", "shape"], [f"e{k}"], name=f"e{k}") for k in range(3)]
    for place, fill in enumerate(fills):
        helper.set_metadata_props(fill, {CHUNK_KEY: str(place)})
    nodes, fences = fenced(fills)
    assert fences == 2
    assert len({node.input[0] for node in nodes if node.op_type == "Expand"}) == 3


def test_a_second_repetition_gets_other_axes() -> None:
    a = MODEL.graph.node[0]
    nodes, fences = fenced([clone(a, "a2"), clone(a, "a3")])
    assert fences == 2
    axes = [n.input[1] for n in nodes if n.op_type == "Unsqueeze"]
    assert len(set(axes)) == 2


def test_clones_that_read_the_same_share_a_fence() -> None:
    b = MODEL.graph.node[1]
    other = helper.make_node("Neg", ["a"], ["n"], name="n")
    nodes, fences = fenced([other, clone(b, "b2"), clone(other, "n2")])
    assert fences == 1
    assert nodes[-1].input[0] == nodes[-2].input[0]


def test_originals_are_left_alone() -> None:
    nodes, fences = fenced([])
    assert fences == 0
    assert [list(n.input) for n in nodes] == [list(n.input) for n in MODEL.graph.node]


def test_parameters_are_not_hidden() -> None:
    node = helper.make_node("Slice", ["x", "starts", "ends", "axes"], ["y"])
    assert data_inputs(node) == [(0, "x")]
    assert data_inputs(helper.make_node("ReduceSum", ["x", "axes"], ["y"])) == [(0, "x")]
    assert data_inputs(helper.make_node("Reshape", ["x", "s"], ["y"])) == [(0, "x"), (1, "s")]
    (copy,) = read_instead([node], {"x": "v", "axes": "v2"})
    assert list(copy.input) == ["v", "starts", "ends", "axes"]


def test_a_graph_without_inputs_is_refused() -> None:
    model = parse("g () => (float[4] y) <float[4] x = {1, 2, 3, 4}> { y = Exp(x) }")
    with pytest.raises(UsageError, match="need a graph input"):
        fence_maker(model.graph)


def test_names_of_earlier_fences_are_not_taken_again() -> None:
    model = onnx.ModelProto.FromString(MODEL.SerializeToString())
    for prefix in ("memplan/", "memplan/2/", "memplan/3/"):
        maker = fence_maker(model.graph)
        assert maker.prefix == prefix
        maker.hide("x", 0, "fence")
        model.graph.node.extend(maker.nodes)
        model.graph.initializer.extend(maker.constants())
    onnx.checker.check_model(model)
