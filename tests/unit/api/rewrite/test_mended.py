"""What simulation or proof rejects is mended, within one deadline; no user gets a bug report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from helpers.graphs import parse
from memplan.api.rewrite import cheapest, proved, rewriting
from memplan.api.rewrite.goal import RewriteOptions
from memplan.api.rewrite.rewriting import Rewrite, rewrite
from memplan.deadline import Deadline
from memplan.equivalence.prove import Equivalence
from memplan.errors import InfeasibleError
from memplan.planning.planner import Prepared, make_plan
from memplan.planning.verify import Rejected
from memplan.units import parse_budget

pytestmark = pytest.mark.rejects

CHAIN = """
g (float[256] x) => (float y)
{
    [a] a = Exp(x) [b] b = Exp(a) [c] c = Sqrt(b) [d] d = Sin(c) [e] e = Cos(d)
    [f] f = Mul(e, d) [g] g = Mul(f, c) [h] h = Mul(g, b) [i] i = Mul(h, a)
    [y] y = ReduceSum<keepdims = 0>(i)
}"""
SEARCH = RewriteOptions(parse_budget("80%"), optimize="none", effort=2)


def rejecting(times: int, peak: Callable[[int], int] | None) -> Callable[..., Any]:
    """A check that finds fault ``times`` times, and what the plan took if ``peak`` says so."""
    seen: list[int] = []
    check = proved.ensure

    def ensure(*arguments: Any) -> Any:
        budget = arguments[2].budget_bytes
        if len(seen) < times:
            seen.append(budget)
            raise Rejected("for once", None if peak is None else peak(budget))
        return check(*arguments)

    return ensure


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """The budgets that plans are made for, and whether there was one at hand."""
    found: list[tuple[int, bool]] = []

    def spied(prepared: Prepared, *rest: Any) -> Any:
        found.append((prepared.request.budget_bytes, bool(prepared.request.at_hand)))
        return make_plan(prepared, *rest)

    monkeypatch.setattr(cheapest, "make_plan", spied)
    return found


def rewritten(options: RewriteOptions = SEARCH) -> Rewrite:
    return rewrite(parse(CHAIN), options)


def test_a_plan_that_holds_is_planned_once(targets: list[tuple[int, bool]]) -> None:
    result = rewritten()
    assert targets == [(result.budget_bytes, False)]


@pytest.mark.parametrize("strategy", ["auto", "greedy"])
@pytest.mark.parametrize("times", [1, 2])
def test_what_is_rejected_is_mended_for_less(
    monkeypatch: pytest.MonkeyPatch, targets: list[tuple[int, bool]], times: int, strategy: str
) -> None:
    monkeypatch.setattr(proved, "ensure", rejecting(times, None))
    result = rewritten(replace(SEARCH, strategy=strategy))
    assert result.timeline.peak_with_workspace_bytes <= result.budget_bytes
    assert result.plan.budget_bytes == result.budget_bytes
    budgets = [budget for budget, _ in targets]
    assert budgets == sorted(set(budgets), reverse=True)
    assert [at_hand for _, at_hand in targets] == [False] + [True] * times


def test_the_margin_is_what_the_check_found(
    monkeypatch: pytest.MonkeyPatch, targets: list[tuple[int, bool]]
) -> None:
    monkeypatch.setattr(proved, "ensure", rejecting(1, lambda budget: budget + 100))
    budget = rewritten().budget_bytes
    assert [target for target, _ in targets] == [budget, budget - 100]


def test_the_lowest_peak_that_is_rejected_is_a_budget(
    monkeypatch: pytest.MonkeyPatch, targets: list[tuple[int, bool]]
) -> None:
    monkeypatch.setattr(proved, "ensure", rejecting(1, lambda budget: budget + 100))
    result = rewritten(replace(SEARCH, budget=parse_budget("min")))
    assert targets[0][0] == 0
    assert targets[1][0] == result.budget_bytes
    assert result.timeline.peak_with_workspace_bytes <= result.budget_bytes


def test_where_none_is_confirmed_the_lowest_peak_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = iter((9_000, 8_500, 8_700))
    monkeypatch.setattr(proved, "ensure", rejecting(9, lambda _: next(peaks)))
    with pytest.raises(InfeasibleError) as caught:
        rewritten(replace(SEARCH, budget=parse_budget("8400")))
    assert caught.value.exit_code == 4
    assert "the lowest verified peak is 8,500 B" in caught.value.message


def test_where_the_check_names_no_figure_its_reason_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proved, "ensure", rejecting(9, None))
    with pytest.raises(InfeasibleError, match=r"that passes verification \(for once\)"):
        rewritten(replace(SEARCH, budget=parse_budget("90%")))


def test_the_time_limit_is_one_for_all_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every search takes all that it is given: those that follow get a least share of the limit,
    not the whole again."""
    time = [0.0]
    given: list[float] = []
    real, calls = proved.prove, list[int]()

    def slow(prepared: Prepared, strategy: Any, seconds: float, *rest: Any) -> Any:
        given.append(seconds)
        time[0] += seconds
        return make_plan(prepared, strategy, 0.5, *rest)

    def blind(*sides: Any) -> Equivalence:
        calls.append(1)
        return Equivalence("it was not looked at") if len(calls) <= 2 else real(*sides)

    monkeypatch.setattr(rewriting, "Deadline", lambda limit: Deadline(limit, lambda: time[0]))
    monkeypatch.setattr(cheapest, "make_plan", slow)
    monkeypatch.setattr(proved, "prove", blind)
    text = "g (float[4,6] x) => (float[4,6] y) { h = Tanh(x) s = Identity(h) y = Exp(s) }"
    options = RewriteOptions(parse_budget("100%"), optimize="none", time_limit=10.0)
    rewrite(parse(text), options)
    assert len(calls) == 3
    assert given == [10.0, 3.0, 3.0]
