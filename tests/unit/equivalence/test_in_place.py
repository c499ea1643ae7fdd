"""Which new values may be written over the old ones: the checker's answer, case by case."""

from pathlib import Path

import onnx
import pytest

from helpers.graphs import parse
from helpers.models import SAMPLES
from memplan.equivalence.in_place import unsafe_pairs

STEP = "(float[4] w, float[4] g, float lr) => (float[4] w_new{more}) {{ {body} }}"
GOOD = "u = Mul(g, lr) w_new = Sub(w, u)"


def reason(body: str, more: str = "", pair: tuple[str, str] = ("w_new", "w")) -> str:
    """Why ``w_new`` may not be written over ``w``; empty if it may."""
    text = "t " + STEP.format(body=body, more=more)
    return unsafe_pairs(parse(text), {pair[0]: pair[1]}).get(pair[0], "")


@pytest.mark.parametrize(
    "body",
    [
        GOOD,
        "u = Mul(g, lr) w_new = Sub(u, w)",
        "u = Mul(w, g) v = Identity(w) x = Add(v, u) w_new = Add(x, w)",
        "a = Mul(w, lr) b = Mul(g, lr) w_new = Add(a, b)",  # the maker does not read it
        "c = Greater(g, w) w_new = Where(c, w, g)",
        "w_new = Sum(w, g)",
        "w_new = Identity(w)",
        "w_new = Softmax(g)",  # any operator may make it if it does not read the old value
        "w_new = Mul(w, w)",
        "w_new = Sub(w, g) s = Shape(w) z = Size(w)",  # they read a shape
        "w_new = Sub(w, g) d = Mul(w_new, lr)",  # the new value may be read as one likes
        "w_new = Sub(w, g) d = Identity(w_new) e = Mul(d, lr)",
    ],
)
def test_a_new_value_may_be_written_where_nobody_reads_the_old_one_later(body: str) -> None:
    assert reason(body) == ""


IF = "g_if = If(c) <then_branch = t () => (float[4] y) {{ y = Add({0}, {0}) }}, " + (
    "else_branch = e () => (float[4] z) {{ z = Neg(g) }}>"
)
TRUE = "c = Constant<value = bool {1}>() "
IF_IN_IF = "g_if = If(c) <then_branch = t () => (float[4] y) {{ y = If(c) <" + (
    "then_branch = tt () => (float[4] a) {{ a = Add({0}, {0}) }}, "
    "else_branch = te () => (float[4] b) {{ b = Neg(g) }}> }}, "
    "else_branch = e () => (float[4] z) {{ z = Neg(g) }}>"
)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (GOOD + " d = Add(w, g)", "node 2 (Add) reads 'w' after node 1 (Sub)"),
        ("v = Identity(w) " + GOOD + " d = Add(v, g)", "reads 'v' after"),
        (
            "s = Constant<value = int64[2] {2, 2}>() v = Reshape(w, s) " + GOOD + " d = Neg(v)",
            "reads 'v' after",
        ),
        ("v = Identity(w) x = Identity(v) " + GOOD + " d = Neg(x)", "reads 'x' after"),
        (TRUE + GOOD + IF.format("w"), "a body of node 3 (If) reads 'w' after"),
        (TRUE + GOOD + IF_IN_IF.format("w"), "a body of node 3 (If) reads 'w' after"),
        ("v = Identity(w) " + TRUE + GOOD + IF.format("v"), "a body of node 4 (If) reads 'v'"),
        (TRUE + IF.format("w").replace("g_if", "w_new"), "has a body"),
        ("w_new = Softmax(w)", "may read 'w' after it has overwritten it"),
        ("w_new = Sum(g, w, g)", "more than 2 inputs"),
        ("w_new = com.unknown.Opt(g)", "unknown domain"),
        ("w_new = com.unknown.Opt(w, g)", "unknown domain"),
        ("q = com.unknown.Peek(w) " + GOOD, "may hand 'w' on: its domain"),
        ("w_new = Sub(w, g) q = com.unknown.Peek(w_new)", "may hand 'w_new' on"),
        ("q = SequenceConstruct(w) " + GOOD, "in a sequence"),
        ("w_new = Constant<value = float[4] {1, 2, 3, 4}>()", "is a constant"),
        ("w_new = Gemm<transA = 1>(w, g)", "may read 'w' after"),
    ],
)
def test_what_reads_the_old_value_later_is_refused(body: str, words: str) -> None:
    assert words in reason(body)


@pytest.mark.parametrize(
    ("body", "more", "words"),
    [
        ("old = Identity(w) " + GOOD, ", float[4] old", "output 'old' may share the old"),
        (GOOD + " also = Identity(w_new)", ", float[4] also", "'also' may share the new"),
        (
            GOOD + " k = Constant<value = int64[1] {0}>() a = Unsqueeze(w_new, k) b = Identity(a)",
            ", float[1, 4] b",
            "'b' may share the new",
        ),
        (GOOD, ", float[4] w", "'w' is an output of the graph as well"),
        (GOOD, ", float[4] w_new", "more than one output 'w_new'"),
    ],
)
def test_what_the_caller_would_see_change_is_refused(body: str, more: str, words: str) -> None:
    assert words in reason(body, more)


def test_a_read_of_the_new_value_by_another_output_is_none_of_the_old() -> None:
    assert reason(GOOD + " d = Mul(w_new, g)", ", float[4] d") == ""


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (("nothing", "w"), "no output 'nothing'"),
        (("w_new", "nothing"), "'nothing' is not an input"),
        (("w_new", "lr"), "different shapes"),
    ],
)
def test_names_and_shapes_that_do_not_fit_are_refused(pair: tuple[str, str], words: str) -> None:
    assert words in reason(GOOD, pair=pair)


@pytest.mark.parametrize(
    ("text", "new", "old", "words"),
    [
        (
            "(float[1, 4] w, float[4, 4] g) => (float[4, 4] w_new) { w_new = Sub(w, g) }",
            "w_new",
            "w",
            "different shapes",
        ),
        ("(float[4] w) => (double[4] n) { n = Cast<to = 11>(w) }", "n", "w", "different types"),
        # A condition is not read by its index only.
        (
            "(bool[4] c, bool[4] x) => (bool[4] n) { n = Where(c, x, x) }",
            "n",
            "c",
            "something other",
        ),
        # A batch normalization shares its statistics.
        (
            """(float[2, 3] x, float[3] s, float[3] m, float[3] v) => (float[2, 3] y, float[3] n)
            { y, a, b = BatchNormalization<training_mode = 1>(x, s, s, m, v) n = Neg(s) d = Neg(a) }
            """,
            "n",
            "m",
            "reads 'a' after",
        ),
    ],
)
def test_what_does_not_fit_is_refused(text: str, new: str, old: str, words: str) -> None:
    assert words in unsafe_pairs(parse(f"t {text}"), {new: old})[new]


def test_two_outputs_for_one_input_are_both_refused() -> None:
    model = parse(
        "t (float[4] w, float[4] g) => (float[4] a, float[4] b) { a = Sub(w, g) b = Add(w, g) }"
    )
    found = unsafe_pairs(model, {"a": "w", "b": "w"})
    assert found == {
        "a": "'b' would be written over 'w' as well",
        "b": "'a' would be written over 'w' as well",
    }


def test_values_that_change_places_need_a_buffer_of_their_own() -> None:
    model = parse(
        "t (float[4] a, float[4] b) => (float[4] a_new, float[4] b_new)"
        "{ a_new = Identity(b) b_new = Neg(a) }"
    )
    assert set(unsafe_pairs(model, {"a_new": "a", "b_new": "b"})) == {"a_new", "b_new"}


def test_shapes_must_be_stated_by_size_or_name() -> None:
    named = parse("t (float[N] w, float[N] g) => (float[N] w_new) { w_new = Sub(w, g) }")
    assert not unsafe_pairs(named, {"w_new": "w"})
    del named.graph.output[0].type.tensor_type.shape.dim[0]
    assert "different shapes" in unsafe_pairs(named, {"w_new": "w"})["w_new"]
    named.graph.output[0].type.tensor_type.ClearField("shape")
    assert "not stated" in unsafe_pairs(named, {"w_new": "w"})["w_new"]


def test_where_the_order_of_the_list_does_not_hold_nothing_is_safe() -> None:
    text = '<ir_version: 10, opset_import: ["" : 20, "own" : 1]> t ' + STEP.format(
        body="u = own.twice(g) w_new = Sub(w, u)", more=""
    )
    text += ' <opset_import: ["" : 20], domain: "own"> twice (x) => (y) { y = Add(x, x) }'
    assert "another place" in unsafe_pairs(parse(text), {"w_new": "w"})["w_new"]
    ranked = parse("t " + STEP.format(body=GOOD, more=""))
    ranked.graph.node[0].attribute.append(onnx.helper.make_attribute("__backwardpass", 1))
    assert "decides on the order" in unsafe_pairs(ranked, {"w_new": "w"})["w_new"]


def test_a_sample_step_updates_all_of_its_state_in_place() -> None:
    model = onnx.load(SAMPLES / "mlp_adamw.onnx", load_external_data=False)
    names = {value.name for value in model.graph.input}
    pairs = {o.name: o.name[:-4] for o in model.graph.output if o.name[:-4] in names}
    assert len(pairs) == 49
    assert unsafe_pairs(model, pairs) == {}


def test_a_long_chain_of_views_and_claims_takes_linear_time(tmp_path: Path) -> None:
    count = 20_000
    views = " ".join(f"v{k + 1} = Identity (v{k})" for k in range(count))
    model = parse(
        f"g (float[4] w) => (float[4] w_new) {{ v0 = Identity (w) {views} w_new = Neg (w) }}"
    )
    assert not unsafe_pairs(model, {"w_new": "w"})
    claims = {f"o{k}": "w" for k in range(count)}
    assert len(unsafe_pairs(model, claims)) == count
