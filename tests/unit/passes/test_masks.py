"""Which masks are read from outputs, and which are made at once."""

from __future__ import annotations

import pytest

from helpers.graphs import REUSING, TUNED, open_text, timeline_of
from helpers.passes import applied, nodes
from memplan.passes import early, masks
from memplan.passes.change import changed
from memplan.passes.early import early_results
from memplan.passes.manager import PassManager
from memplan.passes.masks import Masks
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import simulate

PLAIN = session_kind("default")
HEAD = """g (float[8, 64] i) => (float[8, 64] g)
 <float zero = {0}, float six = {6}, float[64] many = {0}>"""
RELU6 = (
    HEAD.replace(", float[64] many = {0}", "")
    + """{ [x] x = Neg(i) [act] y = Clip(x, zero, six) [next] z = Sin(y) [after] w = Mul(z, y)
 [low] a = Greater(x, zero) [high] b = Less(x, six) [both] m = And(a, b) [gy] v = Mul(w, y)
 [gradient] g = Where(m, v, zero) }"""
)


def inputs(text: str, *names: str) -> list[str]:
    """What the first reader of each of these nodes reads, behind the pass."""
    graph = applied(text, Masks()).graph
    by_name = {node.name: node for node in graph.nodes}
    return [graph.tensors[by_name[name].inputs[0]].name for name in names]


def test_a_clip_is_masked_by_its_output() -> None:
    model = open_text(RELU6)
    before = simulate(model.graph, TUNED)
    step = PassManager([Masks()]).run(model, before)[0]
    assert inputs(RELU6, "low", "high") == ["y", "y"]
    assert step.note == "1 input of activations not kept"
    assert step.timeline.dynamic_peak_bytes < before.dynamic_peak_bytes


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Less(x, six)", "LessOrEqual(x, six)"),  # a tie at the bound
        ("Less(x, six)", "Less(x, i)"),
        ("float[8, 64] g)", "float[8, 64] g, float[8, 64] x)"),
    ],
)
def test_where_the_last_comparison_stays_so_do_the_others(old: str, new: str) -> None:
    assert inputs(RELU6.replace(old, new), "low", "high") == ["x", "x"]


def test_a_mask_that_stays_with_its_input_is_made_at_once() -> None:
    text = RELU6.replace("Less(x, six)", "LessOrEqual(x, six)")
    model = open_text(text)
    before = simulate(model.graph, TUNED)
    step = PassManager([Masks()]).run(model, before)[0]
    assert nodes(step.model) == "x act low high both next after gy gradient"
    assert step.note == "masks made at once"
    assert step.timeline.dynamic_peak_bytes < before.dynamic_peak_bytes
    assert PassManager([Masks()]).run(step.model, step.timeline)[0].model is step.model


def test_only_where_the_file_is_the_order() -> None:
    text = RELU6.replace("Less(x, six)", "LessOrEqual(x, six)")
    model = open_text(text)
    assert PassManager([Masks()]).run(model, simulate(model.graph, REUSING))[0].model is model


def test_late_readers_that_make_more_or_need_more_stay() -> None:
    text = """g (float[8, 8] i) => (float[8, 8] g) { [x] x = Neg(i) [y] y = Exp(x) [z] z = Sin(y)
      [large] a = Cast <to: int = 11>(x) [b] b = Cast <to: int = 1>(a) [g] g = Mul(b, z) }"""
    assert early_results(timeline_of(text)) == list(range(6))
    other = text.replace("Cast <to: int = 11>(x)", "Greater(x, z)")
    assert early_results(timeline_of(other)) == list(range(6))
    small = text.replace("to: int = 11", "to: int = 9")
    assert early_results(timeline_of(small)) == [0, 1, 3, 2, 4, 5]
    given = small.replace("[x] x = Neg(i)", "[x] x = Reshape(i, s)").replace(
        "(float[8, 8] g) {", "(float[8, 8] g) <int64[2] s = {8, 8}> {"
    )
    assert early_results(timeline_of(given)) == list(range(6))  # a view frees nothing


@pytest.mark.parametrize(
    ("activation", "test", "reads"),
    [
        ("Relu(x)", "Greater(x, zero)", "y"),
        ("Relu(x)", "Less(zero, x)", "y"),
        ("Relu(x)", "LessOrEqual(x, zero)", "x"),  # NaN may become 0
        ("Relu(x)", "GreaterOrEqual(x, six)", "y"),
        ("LeakyRelu(x)", "LessOrEqual(x, zero)", "y"),
        ("LeakyRelu(x)", "Less(x, zero)", "x"),  # a product may round to -0
        ("LeakyRelu <alpha: float = -1>(x)", "Greater(x, zero)", "x"),
        ("Max(x, zero)", "Greater(x, zero)", "y"),
        ("Max(zero, x, six)", "Greater(x, zero)", "x"),
        ("Max(x, many)", "Greater(x, zero)", "y"),
        ("Min(x, six)", "Less(x, six)", "y"),
        ("Min(x, six)", "Greater(x, zero)", "x"),
        ("Abs(x)", "Equal(x, zero)", "y"),
        ("Abs(x)", "Equal(x, six)", "x"),
        ("Clip(x, zero)", "Greater(x, zero)", "y"),
        ("Clip(x, zero, i0)", "Greater(x, zero)", "x"),
        ("Exp(x)", "Greater(x, zero)", "x"),
    ],
)
def test_what_tells_the_same(activation: str, test: str, reads: str) -> None:
    text = f"""{HEAD.replace("many = {0}", "many = {" + ", ".join(["0"] * 64) + "}")}
      {{ [x] x = Neg(i) [i0] i0 = ReduceMax <keepdims: int = 0>(i) [act] y = {activation}
      [z] z = Sin(y) [w] w = Mul(z, y) [test] m = {test} [gradient] g = Where(m, w, y) }}"""
    graph = applied(text, Masks()).graph
    node = next(node for node in graph.nodes if node.name == "test")
    assert reads in [graph.tensors[t].name for t in node.inputs]


def test_a_comparison_that_the_file_has_before_the_activation_stays() -> None:
    """A plain session may run it behind the activation all the same."""
    text = (
        HEAD.replace(", float[64] many = {0}", "")
        + """{ [x] x = Neg(i)
 [low] a = Greater(x, zero) [high] b = Less(x, six) [act] y = Clip(x, zero, six) [next] z = Sin(y)
 [after] w = Mul(z, y) [both] m = And(a, b) [gy] v = Mul(w, y) [gradient] g = Where(m, v, zero) }"""
    )
    model = open_text(text)
    for session in (PLAIN, TUNED):
        before = simulate(model.graph, session)
        step = PassManager([Masks()]).run(model, before)[0]
        by_name = {node.name: node for node in step.model.graph.nodes}
        tensors = step.model.graph.tensors
        assert [tensors[by_name[name].inputs[0]].name for name in ("low", "high")] == ["x", "x"]


def test_thousands_of_readers_of_one_tensor_are_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """States that one sum reads, each renewed by what the sum gives: no masks, and no time."""
    count, looks = 400, list[int]()
    real = early._behind
    monkeypatch.setattr(early, "_behind", lambda *given: looks.append(1) or real(*given))
    inputs = ", ".join(f"float[1] w{k}" for k in range(count))
    outputs = ", ".join(f"float[1] n{k}" for k in range(count))
    read = ", ".join(f"w{k}" for k in range(count))
    nodes = " ".join(f"[sub{k}] n{k} = Sub(w{k}, s)" for k in range(count))
    model = open_text(f"g ({inputs}) => ({outputs}) {{ [sum] s = Sum({read}) {nodes} }}")
    assert Masks().apply(model, simulate(model.graph, TUNED)).model is model
    assert len(looks) < 2 * count


def test_many_masks_of_one_tensor_are_found() -> None:
    head = "g (float[8, 64] i) => (float[8, 64] y, bool[8, 64] b0) <float zero = {0}>"
    tests = " ".join(f"[t{k}] b{k} = Greater(x, zero)" for k in range(20))
    model = open_text(f"{head} {{ [x] x = Neg(i) [act] y = Relu(x) {tests} }}")
    after = changed(model, masks._changes(model, simulate(model.graph, TUNED))).graph
    read = {node.name: after.tensors[node.inputs[0]].name for node in after.nodes}
    assert {read[f"t{k}"] for k in range(20)} == {"y"}
