"""Conditions on a file for plain sessions, with a bad plan or file for each: none is handed out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import onnx
import pytest

from helpers.graphs import open_text
from memplan.api.rewrite.rewriting import RewriteOptions, rewrite
from memplan.deadline import Deadline
from memplan.errors import InfeasibleError
from memplan.planning.plain import finish_fences as finishing
from memplan.planning.plain import plain_plan as planning
from memplan.planning.plain.finish_fences import Draft, Limits, finish
from memplan.planning.plain.plain_plan import plan_plain
from memplan.planning.plan import Rejected
from memplan.planning.planner import PlanRequest
from memplan.proto.metadata import node_metadata
from memplan.simulate.opened import OpenModel
from memplan.simulate.session import session_kind
from memplan.solver.pins import Peaks
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


def a_draft() -> Draft:
    prepared = open_text(CHAIN).prepared
    return Draft(prepared.proto, prepared.types, {}, DEFAULT)


@pytest.fixture
def no_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are not loaded by the runtime, which takes a process for each."""
    monkeypatch.setattr(planning, "written_as_loaded", lambda *_: None)


def planned(model: OpenModel) -> onnx.ModelProto:
    request = PlanRequest(model.graph, DEFAULT, PLENTY, lambda g: [1.0] * len(g.nodes))
    return plan_plain(model, request, parse_strategy("none"), Deadline(2.0))[1].model


@pytest.mark.parametrize("wrong", [(0, 0), (4, 0), (-4, 0), (0, 4), (0, -4)])
def test_peaks_of_search_and_simulation_are_equal(
    monkeypatch: pytest.MonkeyPatch, wrong: tuple[int, int]
) -> None:
    """In the first run and in later ones, to the byte."""
    search = finishing.fewest_pins

    def misled(*arguments: Any) -> Any:
        pinned, peaks = search(*arguments)
        return pinned, Peaks(peaks.first + wrong[0], peaks.later + wrong[1])

    monkeypatch.setattr(finishing, "fewest_pins", misled)
    limits = Limits(PLENTY, PLENTY)
    if wrong == (0, 0):
        assert finish(a_draft(), limits, Deadline(1.0)).peaks.first <= PLENTY
        return
    with pytest.raises(Rejected, match="search and simulator disagree"):
        finish(a_draft(), limits, Deadline(1.0))


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
    assert [n.name for n in planned(model).graph.node if not node_metadata(n).get("memplan.role")]

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
def test_a_file_over_its_limits_is_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is finished is measured against the limits, not the draft alone."""
    model = open_text(CHAIN)
    planned(model)
    peaks = property(lambda _: Peaks(PLENTY + 1, 0))
    monkeypatch.setattr(finishing.PlainModel, "peaks", peaks)
    with pytest.raises(InfeasibleError):
        planned(model)
