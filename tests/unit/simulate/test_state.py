"""State in place: which new values may be written over old ones, and what that takes."""

from pathlib import Path

import pytest

from helpers.graphs import parse
from helpers.state_graphs import state_step
from memplan import analyze
from memplan.api.state_modes import parse_state, settled, state_report
from memplan.errors import ModelError, UsageError
from memplan.ir.contract import find_contract
from memplan.proto.metadata import get_metadata
from memplan.shapes.prepare import prepare
from memplan.simulate.opened import OpenModel, opened
from memplan.simulate.session import session_kind
from memplan.simulate.state_memory import EARLY, bind_state, names_of, ordered_for_state, unbound
from memplan.simulate.timeline import simulate

TUNED, PLAIN = session_kind("tuned"), session_kind("default")
SAMPLES = Path(__file__).parents[3] / "sample_models"
HEAD = '<ir_version: 10, opset_import: ["" : 20]> step '


def _model(outputs: str, body: str) -> OpenModel:
    """A step with weights w and v of 256 KiB, an input x and a gradient g of that size."""
    text = f"{HEAD}(float[256,256] w, float[256,256] v, float[256,256] x, float[256] b) => "
    return opened(prepare(parse(f"{text}({outputs}) {{ {body} }}"), Path("m.onnx"), {}))


def _reasons(model: OpenModel, **pairs: str) -> dict[str, str]:
    """Why which of the pairs are not in place, in the order of the list."""
    found = bind_state(model.graph, pairs or {"w_new": "w"}, range(len(model.graph.nodes)))
    assert found.state is not None
    return {found.tensors[o].name: why for o, why in found.state.apart.items()}


@pytest.mark.parametrize(
    "body",
    [
        "g = Relu (x)  w_new = Sub (w, g)",
        "g = MatMul (x, w)  w_new = Sub (w, g)",
        "d = Mul (w, x)  w_new = Sub (d, x)",
        "w_new = Add (x, w)",
        "w_new = Sub (w, b)",
        "w_new = MatMul (x, x)",
    ],
    ids=["plain", "read before", "not read", "second slot", "the other broadcast", "any maker"],
)
def test_a_new_value_may_be_written_over_the_old_one(body: str) -> None:
    assert _reasons(_model("float[256,256] w_new", body)) == {}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("w_new = Sub (w, x)  y = MatMul (x, w)", "after the new one is made"),
        ("t = Identity (w)  w_new = Sub (w, x)  y = MatMul (x, t)", "after the new one is made"),
        ("w_new = MatMul (w, x)  y = Relu (x)", "element by element"),
        ("w_new = Sum (x, x, w)  y = Relu (x)", "element by element"),
        ("w_new = Sub (w, x)  y = Identity (w_new)", "a view of the new value"),
        ("y = Identity (w)  w_new = Sub (w, x)", "a view of the old value"),
    ],
)
def test_where_that_would_be_wrong_it_gets_a_second_buffer(body: str, reason: str) -> None:
    model = _model("float[256,256] w_new, float[256,256] y", body)
    assert reason in _reasons(model)["w_new"]


def test_two_outputs_for_one_input_stay_apart() -> None:
    model = _model("float[256,256] w_new, float[256,256] y", "w_new = Sub (w, x) y = Add (w, x)")
    assert set(_reasons(model, w_new="w", y="w")) == {"w_new", "y"}


def test_bytes_of_a_run_are_less_by_what_lies_in_place_and_a_second_buffer_is_resident() -> None:
    model = _model(
        "float[256,256] w_new, float[256,256] v_new",
        "w_new = Sub (w, x)  v_new = MatMul (v, x)",
    )
    before = simulate(model.graph, TUNED)
    graph = bind_state(model.graph, {"w_new": "w", "v_new": "v"}, range(2))
    after = simulate(graph, TUNED)
    assert (before.dynamic_peak_bytes, after.dynamic_peak_bytes) == (1 << 19, 0)
    assert after.resident_bytes - before.resident_bytes == 1 << 18
    assert simulate(unbound(graph), TUNED).peak_bytes == before.peak_bytes


def test_makers_move_behind_what_reads_old_values() -> None:
    model = _model(
        "float[256,256] w_new, float[256,256] v_new, float[256,256] y",
        "w_new = Sub (w, x)  y = MatMul (w, v)  v_new = Sub (v, w_new)",
    )
    pairs = {"w_new": "w", "v_new": "v"}
    assert set(_reasons(model, **pairs)) == {"w_new"}
    order = ordered_for_state(model.graph, pairs)
    assert order == [1, 0, 2]
    found = bind_state(model.graph, pairs, order)
    assert not found.state.apart


def test_what_cannot_be_ordered_ends_with_one_of_two_apart() -> None:
    """Each maker reads what the other's new value was made into, and the other's old value."""
    model = _model(
        "float[256,256] w_new, float[256,256] v_new",
        "a = Relu (x) w_new = Sub (w, a) p = MatMul (w_new, v) "
        "v_new = Sub (v, a) q = MatMul (v_new, w)",
    )
    pairs = {"w_new": "w", "v_new": "v"}
    order = ordered_for_state(model.graph, pairs)
    assert sorted(order) == list(range(5))
    found = bind_state(model.graph, pairs, order)
    assert len(found.state.apart) == 1


def test_in_a_plain_session_state_stays_in_memory_of_the_run() -> None:
    model = opened(prepare(state_step(1), Path("m.onnx"), {}))
    with pytest.raises(UsageError, match="tuned"):
        settled(model, PLAIN, ("in-place",))
    assert settled(model, PLAIN, ()).graph.state is None


def test_a_file_says_where_its_state_lies_and_options_say_otherwise() -> None:
    model = opened(prepare(state_step(1), Path("m.onnx"), {}))
    assert settled(model, TUNED, ()).graph.state is None
    bound = settled(model, TUNED, ("in-place",))
    again = opened(bound.prepared)
    assert again.graph.state is not None
    assert settled(again, TUNED, ()).graph.state is not None
    assert settled(again, PLAIN, ()).graph.state is None
    assert settled(opened(bound.prepared), TUNED, ("apart",)).graph.state is None


def test_given_pairs_are_written_into_the_file() -> None:
    model = _model("float[256,256] o", "o = Sub (w, x)")
    bound = settled(model, TUNED, ("o=w",))
    assert get_metadata(bound.prepared.proto)["new_values"] == {"o": "w"}
    assert find_contract(bound.graph, bound.phases, get_metadata(bound.prepared.proto)).stated


@pytest.mark.parametrize("values", [("wide",), ("in-place", "apart"), ("apart", "o=w"), ("=w",)])
def test_a_wrong_value_is_told(values: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        parse_state(values)


def test_a_graph_that_renews_nothing_is_told() -> None:
    with pytest.raises(ModelError, match="next value"):
        settled(_model("float[256,256] y", "y = Relu (x)"), TUNED, ("in-place",))


def test_classes_still_add_up_to_the_peak() -> None:
    found = analyze(state_step(3), state="in-place")
    report = state_report(found.graph)
    assert report.second_bytes > 0
    assert sum(found.by_class.values()) == found.timeline.peak_bytes


def test_analyze_says_what_binding_would_save() -> None:
    found = analyze(SAMPLES / "mlp_adamw.onnx", state="apart")
    offered, taken = found.with_state_in_place(), analyze(found.path, state="in-place")
    assert offered.peak_with_workspace_bytes == taken.timeline.peak_with_workspace_bytes
    assert taken.with_state_in_place() is None
    assert isinstance(taken.as_json()["state"], dict)


def test_the_floor_falls_with_what_the_run_no_longer_holds() -> None:
    body = "w_new = Sub (w, x)  v_new = Sub (v, x)"
    model = _model("float[256,256] w_new, float[256,256] v_new", body).prepared.proto
    before, after = analyze(model), analyze(model, state="in-place")
    assert before.floor_bytes - after.floor_bytes == 1 << 19


def test_statistics_made_before_the_loss_move_behind_it() -> None:
    """A step whose loss is not a number is refused before anything is written over."""
    found = analyze(SAMPLES / "cnn_bn.onnx", state="in-place")
    report = state_report(found.graph)
    assert set(report.reasons.values()) == {EARLY}
    graph = unbound(found.graph)
    pairs = names_of(found.graph)
    order = ordered_for_state(graph, pairs, loss="loss")
    after = bind_state(graph, pairs, order, loss="loss").state
    assert len(after.in_place) == len(pairs)
    assert not after.apart
