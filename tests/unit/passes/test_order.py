"""Orders without recomputation, results that are made early, and what is freed of the unread."""

import pytest

from helpers.graphs import TUNED, node, open_text, timeline_of
from helpers.passes import STEP, TWO_WIDE, applied, nodes
from memplan.passes import early
from memplan.passes.early import early_results
from memplan.passes.order import Order, early_order, in_order
from memplan.passes.release import Release
from memplan.simulate.timeline import simulate


def test_an_order_without_recomputation() -> None:
    model = applied(TWO_WIDE, Order(rounds=3))
    assert nodes(model) == "p r q s t"
    assert simulate(model.graph, TUNED).dynamic_peak_bytes == 6 * 1024
    assert applied(TWO_WIDE, Order(rounds=3), Order(rounds=3)) is not model
    assert nodes(applied(TWO_WIDE, Order(rounds=3), Order(rounds=3))) == "p r q s t"


def test_the_given_order_is_the_model_itself() -> None:
    model = open_text(TWO_WIDE)
    assert in_order(model, range(5)) is model
    assert nodes(in_order(model, [1, 0, 2, 3, 4])) == "q p r s t"


def test_updates_run_as_soon_as_their_gradients_are_there() -> None:
    model = open_text(STEP)
    place = {node.name: node.id for node in model.graph.nodes}
    updates = {place[name] for name in ("tick", "me", "de", "ue", "md", "dd", "ud")}
    order = [model.graph.nodes[n].name for n in early_order(model.graph, updates)]
    assert " ".join(order) == ("enc act dec loss seed gd md tick dd ud gr sign gh ge me de ue")


RELU6 = """g (float[8, 64] i) => (float[8, 64] g) <float zero = {0}, float six = {6}>
{ [x] x = Neg(i) [act] y = Clip(x, zero, six) [next] z = Sin(y) [after] w = Mul(z, y)
 [low] a = Greater(x, zero) [high] b = Less(x, six) [both] m = And(a, b) [gy] v = Mul(w, y)
 [cast] c = Cast <to: int = 1>(m) [gradient] g = Mul(c, v) }"""


def test_masks_are_made_at_once() -> None:
    timeline = timeline_of(RELU6)
    order = [timeline.graph.nodes[n].name for n in early_results(timeline)]
    assert order == ["x", "act", "low", "high", "both", "next", "after", "gy", "cast", "gradient"]
    after = applied(RELU6, Order(rounds=1))
    assert simulate(after.graph, TUNED).dynamic_peak_bytes < timeline.dynamic_peak_bytes


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
    timeline = simulate(model.graph, TUNED)
    assert early_results(timeline) == list(range(count + 1))
    assert len(looks) < 2 * count


SPLIT = """g (float[2, 48] z) => (float[2, 24] w) { [halves] left, right = Split <axis: int = 1,
 num_outputs: int = 2>(z) [act] e = Exp(right) [mid] f = Sin(e) [last] w = Exp(f) }"""


def test_eight_bytes_are_not_worth_a_reader() -> None:
    text = SPLIT.replace("[2, 48]", "[1, 4]").replace("[2, 24]", "[1, 2]")
    assert node(applied(text, Release()).graph, "halves").op == "Split"
    assert "release" not in nodes(applied(text, Release()))
