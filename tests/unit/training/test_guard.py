"""A loss that is not a number reaches no state: the run is stopped."""

import numpy as np
import pytest

from helpers.graphs import parse
from helpers.sessions import RAW, session
from memplan.training.guard import with_guard, with_loss_before

TEXT = (
    "t (float[4] w, float[4] x, int64 n) => (float loss, float[4] w_new, int64 n_new, float[4] b) {"
    " one = Constant<value = int64 {1}>() b = Mul(x, x) q = Mul(w, x)"
    " loss = ReduceSum<keepdims = 0>(q) w_new = Sub(w, x) n_new = Add(n, one) }"
)
PAIRS = {"w_new": "w", "n_new": "n"}
GOOD = np.asarray([1, 2, 3, 4], np.float32)


def feeds(x: np.ndarray) -> dict[str, np.ndarray]:
    return {"w": np.full(4, 7, np.float32), "x": x, "n": np.asarray(3)}


def test_a_finite_loss_passes() -> None:
    model = parse(TEXT)
    guarded = with_guard(model, "loss", PAIRS)
    assert guarded.covered == set(PAIRS)
    wanted = session(model, RAW).run(None, feeds(GOOD))
    found = session(guarded.model, RAW).run(None, feeds(GOOD))
    for first, second in zip(wanted, found, strict=True):
        assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_loss_that_is_not_finite_stops_the_run(bad: float) -> None:
    guarded = with_guard(parse(TEXT), "loss", PAIRS)
    assert guarded is not None
    x = GOOD.copy()
    x[1] = bad
    with pytest.raises(Exception, match=f"'{guarded.node}'"):
        session(guarded.model, RAW).run(None, feeds(x))


def test_the_guard_stands_where_the_fewest_bytes_are_in_use() -> None:
    model = parse(TEXT)
    between = [9, 9, 9, 5, 3]
    guarded = with_guard(model, "loss", {"n_new": "n"}, between)
    assert guarded is not None
    ops = [node.op_type for node in guarded.model.graph.node]
    assert ops[-2:] == ["Gather", "Add"]
    between = [9, 9, 9, 1, 3]
    guarded = with_guard(model, "loss", {"n_new": "n"}, between)
    assert guarded is not None
    ops = [node.op_type for node in guarded.model.graph.node]
    assert ops[-3:] == ["Gather", "Sub", "Add"]


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        (
            TEXT.replace("float loss", "float[4] loss").replace("ReduceSum<keepdims = 0>", "Relu"),
            "loss",
        ),
        ('<ir_version: 8, opset_import: ["" : 8]> ' + TEXT.replace("<keepdims = 0>", ""), "loss"),
        (TEXT, "no such"),
        ("t (float[4] w, int64 loss) => (int64 loss, float[4] w_new) { w_new = Neg(w) }", "loss"),
        (TEXT, "n_new"),
    ],
)
def test_where_there_can_be_no_guard_there_is_none(text: str, loss: str) -> None:
    model = parse(text)
    assert with_guard(model, loss, PAIRS) is None


def test_what_is_made_before_the_loss_is_not_covered() -> None:
    model = parse(TEXT)
    guarded = with_guard(model, "loss", {"w_new": "w", "b": "x"})
    assert guarded.covered == {"w_new"}
    none = with_guard(model, "loss", {"b": "x"})
    assert not none.covered


def test_names_of_the_graph_are_not_taken() -> None:
    model = parse(TEXT.replace("q = Mul(w, x)", "q = Mul(w, x) z = Neg(w)"))
    for node in model.graph.node:
        node.output[:] = ["memplan.guard.Sub" if name == "z" else name for name in node.output]
    guarded = with_guard(model, "loss", PAIRS)
    assert guarded is not None
    made = [name for node in guarded.model.graph.node for name in node.output]
    assert len(made) == len(set(made))
    session(guarded.model, RAW).run(None, feeds(GOOD))


def test_a_late_loss_is_made_before_what_is_written_in_place() -> None:
    model = parse(
        "t (float[4] w, float[4] x) => (float loss, float[4] w_new) {"
        " q = Mul(w, x) r = Relu(q) w_new = Sub(w, x) s = Neg(r)"
        " loss = ReduceSum<keepdims = 0>(s) }"
    )
    moved = with_loss_before(model, "loss", {"w_new": "w"})
    assert [node.op_type for node in moved.graph.node] == ["Mul", "Relu", "Neg", "ReduceSum", "Sub"]
    assert [node.op_type for node in model.graph.node][2] == "Sub"
    assert with_loss_before(moved, "loss", {"w_new": "w"}) is moved
    assert with_loss_before(model, "loss", {}) is model
    feeds = {"w": GOOD, "x": np.full(4, 2, np.float32)}
    for first, second in zip(
        session(model, RAW).run(None, feeds), session(moved, RAW).run(None, feeds), strict=True
    ):
        assert first.tobytes() == second.tobytes()


def test_a_loss_that_much_is_left_to_do_for_stays_where_it_is() -> None:
    chain = " ".join(f"t{k + 1} = Tanh(t{k})" for k in range(20))
    model = parse(
        "t (float[4] w, float[4] x) => (float loss, float[4] w_new) {"
        f" w_new = Sub(w, x) t0 = Mul(x, x) {chain} loss = ReduceSum<keepdims = 0>(t20) }}"
    )
    assert with_loss_before(model, "loss", {"w_new": "w"}) is model
