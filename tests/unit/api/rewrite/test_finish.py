"""What passes know of a graph the proof finds out, too; where it does not, the report says so."""

from dataclasses import replace
from typing import Any

import onnx
import pytest

from helpers.graphs import parse
from memplan.api.rewrite import cheapest, finish, rewriting
from memplan.api.rewrite.cheapest import Planned
from memplan.api.rewrite.goal import Goal, RewriteOptions, Source
from memplan.api.rewrite.rewriting import Rewrite, rewrite
from memplan.deadline import Deadline
from memplan.equivalence.prove import Equivalence
from memplan.errors import EXIT_BUG, InfeasibleError
from memplan.planning.plan import Rejected
from memplan.planning.planner import Prepared, make_plan
from memplan.units import parse_budget, parse_size

# The end of the slice follows from constants, and the file states no shape of what it makes.
WHOLE_SLICE = """
    <ir_version: 10, opset_import: ["" : 18]>
    g (float[4,6] x) => (float[4,6] y)
        <int64[1] zero = {0}, int64[1] twelve = {12}, int64[1] two = {2}, int64[1] one = {1}>
    {
        h = Tanh(x)
        end = Div(twelve, two)
        s = Slice(h, zero, end, one)
        y = Exp(s)
    }
"""


def test_a_copy_is_removed_whose_sizes_are_computed() -> None:
    options = RewriteOptions(parse_size("100%"), strategy="greedy", optimize="none")
    result = rewrite(onnx.parser.parse_model(WHOLE_SLICE), options)
    assert "Slice" not in {node.op_type for node in result.model.graph.node}
    assert result.equivalence.proved


def rejecting(monkeypatch: pytest.MonkeyPatch, where: str, times: int) -> None:
    """The check ``where`` finds fault ``times`` times."""
    check, left = getattr(finish, where), [times]

    def strict(*arguments: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise Rejected(f"reason {left[0]}")
        return check(*arguments)

    monkeypatch.setattr(finish, where, strict)


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What every search is given, of which each takes all: time is counted by them."""
    given, time = list[float](), [0.0]

    def slow(prepared: Prepared, strategy: Any, limit: float, *rest: Any) -> Any:
        given.append(limit)
        time[0] += limit
        return make_plan(prepared, strategy, 0.5, *rest)

    monkeypatch.setattr(rewriting, "Deadline", lambda limit: Deadline(limit, lambda: time[0]))
    monkeypatch.setattr(cheapest, "make_plan", slow)
    return given


COPIED = """g (float[4,6] x, float[4,6] w) => (float[4,6] y)
    { h = Tanh(x) s = Identity(h) y = Exp(s) [idle] z = Neg(w) }"""


def copied(budget: str = "100%") -> Rewrite:
    return rewrite(
        parse(COPIED), RewriteOptions(parse_budget(budget), optimize="none", time_limit=10.0)
    )


def test_a_plan_that_holds_is_planned_once(seconds: list[float]) -> None:
    assert {"Identity", "Neg"}.isdisjoint(node.op_type for node in copied().model.graph.node)
    assert seconds == [10.0]


@pytest.mark.rejects
@pytest.mark.parametrize("budget", ["100%", "min"])
@pytest.mark.parametrize("where", ["sound_timeline", "require_as_planned", "prove"])
def test_a_plan_that_is_rejected_is_made_once_more_with_less(
    monkeypatch: pytest.MonkeyPatch, seconds: list[float], where: str, budget: str
) -> None:
    """``prune`` alone of the passes, within what is left of the time, or a second."""
    rejecting(monkeypatch, where, 1)
    result = copied(budget)
    told = [text for text in result.assumptions if "planned again without passes" in text]
    assert len(told) == 1
    assert "rejected: reason 0. This is a bug in memplan: please report it" in told[0]
    made = {node.op_type for node in result.model.graph.node}
    assert "Identity" in made
    assert "Neg" not in made
    assert result.timeline.peak_with_workspace_bytes <= result.budget_bytes
    assert seconds == [10.0, 1.0]


@pytest.mark.rejects
def test_what_the_proof_does_not_follow_is_told_in_the_users_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prove, words = finish.prove, ["node 'h' (Tanh) computes nothing that the original computes"]

    def lost(*sides: Any) -> Equivalence:
        return replace(prove(*sides), reason=words.pop() if words else None)

    monkeypatch.setattr(finish, "prove", lost)
    (note,) = (text for text in copied().assumptions if "planned again without passes" in text)
    assert "rejected: the new graph is not proved to compute the same. This is a bug" in note
    assert "computes nothing" not in note


@pytest.mark.rejects
def test_a_plan_that_is_rejected_twice_is_our_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    rejecting(monkeypatch, "sound_timeline", 2)
    with pytest.raises(Rejected, match="the plan was rejected: reason 1") as caught:
        copied()
    assert caught.value.exit_code == EXIT_BUG


@pytest.mark.rejects
def test_where_no_plan_is_left_the_rejection_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With less at hand no plan may keep the budget, which is not what went wrong."""
    find = finish.find_plan

    def scarce(source: Source, goal: Goal) -> Planned:
        if goal.prune_alone:
            raise InfeasibleError("no plan found")
        return find(source, goal)

    rejecting(monkeypatch, "sound_timeline", 1)
    monkeypatch.setattr(finish, "find_plan", scarce)
    with pytest.raises(Rejected, match="reason 0"):
        copied()
