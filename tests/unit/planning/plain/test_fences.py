"""Fences keep recomputed nodes apart; those of inputs hide shapes and stop folding."""

import onnx
import pytest
from onnx import helper

from helpers.graphs import open_text, parse
from memplan.errors import UsageError
from memplan.planning.plain.fences import fence_clones, fence_maker
from memplan.planning.plain.input_fences import input_fences_for
from memplan.proto.metadata import CHUNK_KEY, set_metadata
from memplan.shapes.hidden import with_hidden_shapes
from memplan.shapes.visible import visible_names


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


@pytest.mark.parametrize(
    ("op", "reads"), [("Slice", "a from{k} to{k} axis"), ("Expand", "w shape")]
)
def test_equal_nodes_of_chunks_read_through_fences_of_their_own(op: str, reads: str) -> None:
    """The runtime makes one Split of slices of a tensor, and so all chunks at once."""
    given = [
        helper.make_node(op, reads.format(k=k).split(), [f"s{k}"], name=f"s{k}") for k in range(3)
    ]
    for place, each in enumerate(given):
        helper.set_metadata_props(each, {CHUNK_KEY: str(place)})
    nodes, fences = fenced(given)
    assert fences == 2
    assert len({node.input[0] for node in nodes if node.op_type == op}) == 3


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


def test_what_would_be_folded_is_veiled_always() -> None:
    model = parse(
        """g (float[4] x) => (float[2, 2] y) <int64[2] s = {2, 2}>
        { z = ConstantOfShape(s)  y = Add(x, z) }"""
    )
    types = {**open_text("g (float[4] x) => (float[4] y) { y = Exp(x) }").prepared.types}
    types |= {"s": types["x"]}
    (fence, _) = sorted(
        input_fences_for(model.graph, types, fence_maker(model.graph)), key=lambda v: v.sources
    )
    assert fence.sources == ("s",)
    assert fence.fixed


def test_behind_a_veil_shapes_are_hidden_up_to_a_constant_reshape() -> None:
    model = parse(
        """g (float[4, 4] x) => (float y) <int64[0] none = {}, int64[1] flat = {16}> {
          n = Size(x)  axes = Mul(n, none)  v = Unsqueeze(x, axes)
          a = Exp(v)  b = Reshape(a, flat)  c = Exp(b)  y = ReduceSum <keepdims = 0> (c)
        }"""
    )
    prepared = open_text(model).prepared
    # memplan knows all shapes, the runtime does not.
    assert prepared.types["a"].shape == (4, 4)
    visible = visible_names(model, prepared.types)
    assert {"v", "a"}.isdisjoint(visible)
    assert {"b", "c", "y"} <= visible
    assert not prepared.types["a"].static
    assert prepared.types["c"].static


def test_symbols_of_the_file_are_visible_but_not_those_of_inference() -> None:
    model = parse(
        """g (float[N, 4] x) => (float y) <int64[1] flat = {-1}> {
          a = Exp(x)  b = Reshape(a, flat)  c = Exp(b)  y = ReduceSum <keepdims = 0> (c)
        }"""
    )
    types = open_text(model, dims={"N": 3}).prepared.types
    visible = visible_names(model, types)
    assert "a" in visible
    assert {"b", "c"}.isdisjoint(visible)


def test_hidden_shapes_are_read_back_but_not_stated() -> None:
    model = parse(
        """g (float[4] x) => (float y) {
          a = com.microsoft.QuickGelu(x)  y = ReduceSum <keepdims = 0> (a)
        }"""
    )
    set_metadata(model, {"hidden_shapes": {"a": [1, [4]], "y": "nonsense", "gone": [1, [4]]}})
    stated = {v.name for v in with_hidden_shapes(model).graph.value_info}
    assert stated == {"a"}
    assert open_text(model).prepared.types["a"].shape == (4,)
