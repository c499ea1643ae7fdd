"""Conditions on a file for plain sessions, with a bad plan or file for each: none is handed out."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.graphs import open_text
from helpers.random_graphs import models as random_models
from memplan.api.rewrite.rewriting import RewriteOptions, rewrite
from memplan.deadline import Deadline
from memplan.errors import InfeasibleError
from memplan.planning.plain import finish_fences as finishing
from memplan.planning.plain import plain_plan as planning
from memplan.planning.plain.finish_fences import Draft, Peaks, finish
from memplan.planning.plain.plain_plan import everything_fenced, plan_plain
from memplan.planning.plan import Rejected
from memplan.planning.planner import PlanRequest, Prepared, make_plan, prepare
from memplan.proto.metadata import node_metadata
from memplan.simulate.opened import OpenModel
from memplan.simulate.session import session_kind
from memplan.solver.strategies.builtin import parse_strategy
from memplan.units import parse_size

pytestmark = pytest.mark.rejects

DEFAULT = session_kind("default")
CHAIN = """
g (float[256] x) => (float y, float[256] z)
{
    [a] a = Exp(x) [b] b = Exp(a) [c] c = Sqrt(b) [d] d = Sin(c) [e] e = Cos(d)
    [f] f = Mul(e, d) [g] g = Mul(f, c) [h] h = Mul(g, b) [z] z = Mul(h, a)
    [y] y = ReduceSum<keepdims = 0>(z)
}"""
PLENTY = 1 << 20


@pytest.fixture
def no_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are not loaded by the runtime, which takes a process for each."""
    monkeypatch.setattr(planning, "written_as_loaded", lambda *_: None)


def planned(model: OpenModel, deadline: Deadline) -> onnx.ModelProto:
    request = PlanRequest(model.graph, DEFAULT, PLENTY, lambda g: [1.0] * len(g.nodes))
    asked = prepare(everything_fenced(request))
    return plan_plain(model, asked, DEFAULT, parse_strategy("none"), deadline)[1].model


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_models(), st.integers(0, 9))
def test_pins_behind_chains_keep_the_order(model: onnx.ModelProto, count: int) -> None:
    """Whatever input fences there are, the runtime runs the nodes as they are planned."""
    prepared = open_text(model).prepared
    draft = Draft(prepared.proto, prepared.types, {}, DEFAULT)
    made = draft.finished(count, {*draft.ends})
    nodes = [made.timeline.graph.nodes[index].name for index in made.timeline.order]
    planned = [node.name for node in draft.nodes if not node.name.startswith(draft.maker.prefix)]
    assert [name for name in nodes if not name.startswith(draft.maker.prefix)] == planned


# Two layers; both weight gradients are outputs, so the default order makes the first layer's last.
LAYERS = """
g (float[256] x) => (float d3, float d2, float d1)
{
    a = Exp(x)  b = Exp(a)  c = Exp(b)  d = Exp(c)  gd = Sin(d)
    m3 = Mul(gd, c)  d3 = ReduceSum<keepdims = 0>(m3)
    gc = Mul(gd, d)  m2 = Mul(gc, b)  d2 = ReduceSum<keepdims = 0>(m2)
    gb = Mul(gc, c)  m1 = Mul(gb, a)  d1 = ReduceSum<keepdims = 0>(m1)
}"""


def test_few_input_fences_and_pins_where_the_budget_is_loose() -> None:
    """None where it holds without; else a pin behind some of the chains of nodes."""
    prepared = open_text(LAYERS).prepared
    draft = Draft(prepared.proto, prepared.types, {}, DEFAULT)
    chains = [draft.pinnable[node] for node in draft.ends]
    assert chains == ["d3", "d2", "d1"]
    nothing = open_text("g (float[3] x) => (float[3] x) { }").prepared
    assert not Draft(nothing.proto, nothing.types, {}, DEFAULT).ends
    loose = finish(draft, Peaks(PLENTY, PLENTY))
    assert (loose.fenced, loose.pinned) == ((), ())
    some = next(node for node, tensor in draft.pinnable.items() if tensor == "b")
    assert finish(draft, Peaks(PLENTY, PLENTY), frozenset({some})).pinned == ("b",)
    whole = draft.finished(len(draft.input_fences), {*draft.ends})
    tight = finish(draft, whole.peaks)
    assert tight.pinned == ("d3",)
    assert tight.peaks.first <= whole.peaks.first < loose.peaks.first
    assert tight.peaks.later <= whole.peaks.later
    over = finish(draft, Peaks(0, 0))
    assert over.peaks.first <= whole.peaks.first
    assert over.fenced == whole.fenced
    # Without time: the plan's own order, and the fewest input fences, if that is enough.
    late = finish(draft, Peaks(PLENTY, PLENTY), deadline=Deadline(0.0))
    assert (late.fenced, late.pinned) == ((), whole.pinned)


def another_interface(model: onnx.ModelProto) -> None:
    del model.graph.output[1]


def an_unknown_attribute(model: onnx.ModelProto) -> None:
    node = next(n for n in model.graph.node if n.name == "c")
    node.attribute.append(onnx.helper.make_attribute("colour", 3))


@pytest.mark.usefixtures("no_runtime")
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [(another_interface, "the graph outputs changed"), (an_unknown_attribute, "ONNX checker")],
)
def test_a_bad_file_is_not_handed_out(
    monkeypatch: pytest.MonkeyPatch, spoil: Any, reason: str
) -> None:
    model = open_text(CHAIN)
    made = planned(model, Deadline(2.0))
    assert [n.name for n in made.graph.node if not node_metadata(n).get("memplan.role")]

    def spoiled(*arguments: Any) -> Any:
        made = finish(*arguments)
        wrong = onnx.ModelProto.FromString(made.model.SerializeToString())
        spoil(wrong)
        return replace(made, model=wrong)

    monkeypatch.setattr(planning, "finish", spoiled)
    options = RewriteOptions(
        parse_size(str(PLENTY)), session="default", optimize="none", strategy="none"
    )
    with pytest.raises(Rejected, match=reason):
        rewrite(model.prepared.proto, options)


@pytest.mark.usefixtures("no_runtime")
@pytest.mark.parametrize(("seconds", "attempts"), [(0.0, 12), (4.0, 4), (20.0, 3)])
def test_a_file_over_its_limits_is_not_handed_out(
    monkeypatch: pytest.MonkeyPatch, seconds: float, attempts: int
) -> None:
    """What is finished is measured against the limits, not the draft alone. No attempt begins
    behind the deadline, but for two for the first run."""
    time = [0.0]

    def slow(*arguments: Any) -> Any:
        time.append(time[-1] + seconds)
        return finish(*arguments)

    def at_once(asked: Prepared, *rest: Any) -> Any:
        return make_plan(replace(asked, request=replace(asked.request, budget_bytes=PLENTY)), *rest)

    monkeypatch.setattr(planning, "finish", slow)
    monkeypatch.setattr(planning, "make_plan", at_once)
    peaks = property(lambda _: Peaks(PLENTY + 1, 0))
    monkeypatch.setattr(finishing.PlainModel, "peaks", peaks)
    with pytest.raises(InfeasibleError):
        planned(open_text(CHAIN), Deadline(10.0, lambda: time[-1]))
    assert len(time) == 1 + attempts


def test_no_plan_is_searched_for_without_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for later runs, too, that had none would only seem to show that nothing fits."""
    now, given = [0.0], list[float]()

    def make_plan(asked: Prepared, _strategy: object, seconds: float, _progress: object) -> Any:
        given.extend([seconds] * int(asked.request.outputs_reserved))
        now[0] += seconds
        peak = asked.request.budget_bytes
        return SimpleNamespace(predicted_peak_with_workspace_bytes=peak, extra_cost_fraction=0.1)

    def made(*_: object) -> Any:
        now[0] += 1.0
        return SimpleNamespace(peaks=Peaks(PLENTY + 9, PLENTY + 9))

    monkeypatch.setattr(planning, "make_plan", make_plan)
    monkeypatch.setattr(planning, "_made", made)
    with pytest.raises(InfeasibleError):
        planned(open_text(CHAIN), Deadline(10, lambda: now[0]))
    assert len(given) > 3
    assert min(given) > 0.1
