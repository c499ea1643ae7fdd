"""Input fences hide shapes and stop folding."""

from __future__ import annotations

from helpers.graphs import open_text, parse
from memplan.planning.plain.fences import fence_maker
from memplan.planning.plain.input_fences import input_fences_for
from memplan.proto.metadata import set_metadata
from memplan.shapes.hidden import with_hidden_shapes
from memplan.shapes.visible import visible_names


def test_equal_constants_share_a_veil() -> None:
    model = parse(
        """g (float[4] x) => (float[2, 2] y, float[2, 2] z)
        <int64[2] s = {2, 2}, int64[2] t = {2, 2}> { y = Reshape(x, s)  z = Reshape(x, t) }"""
    )
    types = open_text(model).prepared.types
    input_fences = input_fences_for(model.graph, types, fence_maker(model.graph))
    assert sorted(fence.sources for fence in input_fences) == [("s", "t"), ("x",)]
    assert not any(fence.fixed for fence in input_fences)


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
