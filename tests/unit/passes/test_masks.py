"""Two masks of one gradient that are joined, and pairs that are left alone."""

import numpy as np
import onnx
import pytest

from helpers.graphs import TUNED, open_text, parse
from helpers.plans import outputs_of
from helpers.proofs import proof
from memplan.equivalence.prove import Side, prove, reference_side
from memplan.passes.manager import run_passes
from memplan.passes.masks import Masks, joined_masks
from memplan.passes.order import Order
from memplan.passes.surgery import ModelEdit
from memplan.simulate.timeline import simulate

HEAD = """g (float[64, 64] x, float[64, 64] g) => (float[64, 64] z{outputs})
<float low = {{0.0}}, float high = {{6.0}}, float one = {{1.0}}, float two = {{2.0}},
 float minus = {{-0.0}}>
{{ [v] v = Tanh(x)
   [y] y = Clip(v, low, high) [p] p = MatMul(y, y) [q] q = MatMul(p, y) [r] r = MatMul(q, p)
   [s] s = Add(r, q) [t] t = Add(s, p) [u] u = Mul(t, g)"""
PAIR = (
    HEAD
    + """ [b] b = Greater(v, high) [f] f = Where(b, low, one) [m] m = Mul(u, f)
   [a] a = Less(v, low) [e] e = Where(a, low, one) [z] z = Mul(m, e) }}"""
)
JOINED = (
    HEAD
    + """ [b] b = Greater(v, high) [a] a = Less(v, low) [o] o = Or(b, a)
   [e] e = Where(o, low, one) [z] z = Mul(u, e) }}"""
)


def pair(outputs: str = "") -> str:
    return PAIR.format(outputs=outputs)


@pytest.mark.slow
def test_relu6_keeps_one_mask() -> None:
    model = open_text(pair())
    before = simulate(model.graph, TUNED)
    joined, step = run_passes([Masks(), Order(rounds=4)], model, before)
    assert joined.note == "1 mask joined with another"
    assert before.peak_bytes - step.timeline.peak_bytes == 64 * 64 * 3
    after = step.model.prepared.proto
    found = prove(reference_side(model.prepared), Side(after, model.prepared.folder))
    assert found.proved, found.reason


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[f] f = Where(b, low, one)", "[f] f = Where(b, minus, one)"),
        ("[f] f = Where(b, low, one)", "[f] f = Where(b, one, low)"),
        ("[f] f = Where(b, low, one)", "[f] f = Where(b, low, two)"),
        ("[m] m = Mul(u, f)", "[m] m = Div(u, f)"),
        ("[a] a = Less(v, low)", "[a] a = Greater(v, high)"),
    ],
)
def test_left_alone(old: str, new: str) -> None:
    assert old in pair()
    changes = joined_masks(open_text(pair().replace(old, new)))
    assert len(changes) == (1 if "[a]" in old else 0)


@pytest.mark.parametrize("more", [", float[64, 64] m", ", float[64, 64] f", ", float[64, 64] e"])
def test_what_others_want_is_left_alone(more: str) -> None:
    assert not joined_masks(open_text(pair(more)))


def test_the_proof_of_a_joined_mask() -> None:
    joined = JOINED.format(outputs="")
    found = proof(pair(), joined)
    assert found.proved, found.reason
    for old, new in (
        ("Or(b, a)", "And(b, a)"),
        ("Or(b, a)", "Or(b, b)"),
        ("Or(b, a)", "Or(a, a)"),
        ("Mul(u, e)", "Div(u, e)"),
        ("Where(o, low, one)", "Where(o, minus, one)"),
        ("Where(o, low, one)", "Where(o, low, two)"),
        ("Where(o, low, one)", "Where(o, one, low)"),
        ("z = Mul(u, e)", "z = Mul(e, u)"),
    ):
        assert old in joined
        assert proof(pair(), joined.replace(old, new)).reason


@pytest.mark.parametrize(
    ("name", "number"),
    [("low", "-0.0"), ("low", "0.5"), ("low", "nan"), ("one", "-1.0")],
    ids=["another sign", "not 0", "not a number", "not handed on"],
)
def test_other_numbers_are_not_joined(name: str, number: str) -> None:
    """``u·-0·-0`` has the sign of ``u``, ``u·-0`` has the other."""
    first, second = (parse(text.format(outputs="")) for text in (PAIR, JOINED))
    for model in (first, second):
        (tensor,) = (t for t in model.graph.initializer if t.name == name)
        tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(float(number), np.float32), name))
    assert proof(first, second).reason is not None


def test_the_bits_are_the_same_at_all_special_values() -> None:
    """Products of NaN, infinities and both zeros, where no, one or both masks hold."""
    text = """g (bool[4096] a, bool[4096] b, float[4096] u) => (float[4096] z)
    <float zero = {0.0}, float one = {1.0}>
    { [f] f = Where(b, zero, one) [m] m = Mul(u, f) [e] e = Where(a, zero, one)
      [z] z = Mul(m, e) }"""
    model = open_text(text)
    edit = ModelEdit(model)
    for change in joined_masks(model):
        change(edit)
    joined = edit.opened().prepared.proto
    assert any(node.op_type == "Or" for node in joined.graph.node)
    info = np.finfo(np.float32)
    values = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, info.max, info.min, 1e-45, -1e-45, 0.3]
    values += [np.frombuffer(b"\x01\x00\xa0\x7f", np.float32)[0]]  # a NaN that signals
    u = np.resize(np.array(values, np.float32), 4096)
    place = np.arange(4096) // len(values)
    feeds = {"a": place % 2 == 0, "b": place % 3 == 0, "u": u}
    (before,), _ = outputs_of(model.prepared.proto, feeds)
    (after,), _ = outputs_of(joined, feeds)
    assert before.tobytes() == after.tobytes()
