"""What the check rejects is planned again; bug reports are not a user's answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from helpers.graphs import TUNED, open_text
from memplan.errors import InfeasibleError
from memplan.planning import confirm
from memplan.planning.confirm import confirmed_plan
from memplan.planning.planner import PlanRequest, Prepared, make_plan, prepare, without_unread
from memplan.planning.verify import Rejected
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import simulate
from memplan.solver.evaluate import decide
from memplan.solver.strategies.builtin import parse_strategy

pytestmark = pytest.mark.rejects

CHAIN = """
g (float[256] x) => (float y)
{
    [a] a = Exp(x) [b] b = Exp(a) [c] c = Sqrt(b) [d] d = Sin(c) [e] e = Cos(d)
    [f] f = Mul(e, d) [g] g = Mul(f, c) [h] h = Mul(g, b) [i] i = Mul(h, a)
    [y] y = ReduceSum<keepdims = 0>(i)
}"""
GREEDY = parse_strategy("greedy")


def a_request(share: float) -> tuple[OpenModel, PlanRequest]:
    """The chain with a budget, as a share of its peak."""
    model = open_text(CHAIN)
    budget = int(share * simulate(model.graph, TUNED).peak_with_workspace_bytes)
    return model, PlanRequest(model.graph, TUNED, budget, lambda g: [1.0] * len(g.nodes))


def rejecting(times: int, peak: Callable[[int], int] | None) -> Callable[..., Any]:
    """A check that finds fault ``times`` times, and what the plan took if ``peak`` says so."""
    seen: list[int] = []
    check = confirm.ensure

    def ensure(*arguments: Any) -> Any:
        plan = arguments[2]
        if len(seen) < times:
            seen.append(plan.budget_bytes)
            raise Rejected("for once", None if peak is None else peak(plan.budget_bytes))
        return check(*arguments)

    return ensure


def test_a_plan_that_holds_is_planned_once() -> None:
    model, request = a_request(0.8)
    found = confirmed_plan(model.prepared, request, GREEDY, 5.0)
    assert found.plan.sequence == make_plan(prepare(request), GREEDY, 5.0).sequence
    assert found.timeline.peak_with_workspace_bytes <= request.budget_bytes


@pytest.mark.parametrize("times", [1, 2])
def test_what_is_rejected_is_planned_again(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    model, request = a_request(0.8)
    targets: list[int] = []

    def spied(prepared: Prepared, *rest: Any) -> Any:
        targets.append(prepared.request.budget_bytes)
        return make_plan(prepared, *rest)

    monkeypatch.setattr(confirm, "make_plan", spied)
    monkeypatch.setattr(confirm, "ensure", rejecting(times, None))
    found = confirmed_plan(model.prepared, request, GREEDY, 5.0)
    assert found.timeline.peak_with_workspace_bytes <= request.budget_bytes
    assert found.plan.budget_bytes == request.budget_bytes
    assert targets == sorted(set(targets), reverse=True)
    assert len(targets) == times + 1


def test_the_margin_is_what_the_check_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model, request = a_request(0.8)
    budgets: list[int] = []

    def spied(prepared: Prepared, *rest: Any) -> Any:
        budgets.append(prepared.request.budget_bytes)
        return make_plan(prepared, *rest)

    monkeypatch.setattr(confirm, "make_plan", spied)
    monkeypatch.setattr(confirm, "ensure", rejecting(1, lambda budget: budget + 100))
    confirmed_plan(model.prepared, request, GREEDY, 5.0)
    assert budgets == [request.budget_bytes, request.budget_bytes - 100]


def test_where_none_is_confirmed_the_lowest_peak_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model, request = a_request(0.8)
    peaks = iter((9_000, 8_500, 8_700))
    monkeypatch.setattr(confirm, "ensure", rejecting(9, lambda _: next(peaks)))
    with pytest.raises(InfeasibleError) as caught:
        confirmed_plan(model.prepared, replace(request, budget_bytes=8_400), GREEDY, 5.0)
    assert caught.value.exit_code == 4
    assert "the lowest peak that its check confirms is 8,500 B" in caught.value.message


def test_where_the_check_names_no_figure_its_reason_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, request = a_request(0.9)
    monkeypatch.setattr(confirm, "ensure", rejecting(9, None))
    with pytest.raises(InfeasibleError, match=r"that its check confirms \(for once\)"):
        confirmed_plan(model.prepared, request, GREEDY, 5.0)


def test_recomputations_that_nobody_reads_are_taken_out() -> None:
    """``b`` once more for nobody goes; ``a`` once more for ``i`` stays."""
    _, request = a_request(1.0)
    prepared = prepare(request)
    problem = prepared.encoded.problem(request.budget_bytes - prepared.resident_bytes)
    names = {node.name: node.id for node in prepared.extended.graph.nodes}
    order = problem.order.tolist()
    at = order.index(names["i"])
    idle = [*order[:at], names["b"], *order[at:]]
    assert without_unread(problem, decide(problem, np.asarray(idle))).sequence.tolist() == order
    read = [*order[:at], names["a"], *order[at:]]
    assert without_unread(problem, decide(problem, np.asarray(read))).sequence.tolist() == read
