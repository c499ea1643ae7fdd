"""Strategies by name: specs and their options, the list of them, and how answers are checked."""

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from helpers.problems import LONG_SKIP, Case
from helpers.running import Memplan
from memplan.errors import MemplanError, UsageError
from memplan.solver.problem import Decision, Problem
from memplan.solver.strategies.builtin import BUILT_IN, Greedy, Keep, Search, parse_strategy
from memplan.solver.strategies.checked import checked, why_not_a_sequence
from memplan.solver.strategies.spec import Spec, options_of, split_spec
from memplan.solver.strategy import Outcome, Progress


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_strategy_is_listed_with_its_source_and_options(inside: Memplan) -> None:
    text = succeeded(inside("strategies"))
    for name, strategy in BUILT_IN.items():
        assert re.search(rf"^{name}\b", text, re.MULTILINE)
        assert f"  {strategy.summary}\n  source: {strategy.source}\n" in text
    assert "  function=cost: cost or kind; what is cheap: by its time per byte" in text
    assert "  seed=0: a whole number; another one gives another plan\n" in text
    assert "search (or auto: " in text
    assert succeeded(inside("strategies", "-q")).split() == sorted(BUILT_IN)


def test_the_list_as_json(inside: Memplan, tmp_path: Path) -> None:
    found = json.loads(succeeded(inside("strategies", "--format", "json")))
    assert (found["schema"], found["default"]) == ("memplan.strategies/1", "search")
    rows = {row["name"]: row for row in found["strategies"]}
    assert rows.keys() == BUILT_IN.keys()
    for row in rows.values():
        assert (row["owner"], row["broken"]) == ("memplan", None)
        assert row["summary"]
        assert row["source"]
    assert rows["mirror"]["options"][0] == {
        "name": "function",
        "kind": "text",
        "default": "cost",
        "allowed": ["cost", "kind"],
        "meaning": BUILT_IN["mirror"].meanings["function"],
    }
    assert rows["search"]["options"][1] == {
        "name": "seed",
        "kind": "number",
        "default": 0,
        "allowed": None,
        "meaning": "another one gives another plan",
    }
    assert succeeded(inside("strategies", "--format", "json", "-o", "list.json")) == ""
    assert json.loads((tmp_path / "list.json").read_text()) == found


CASE = Case("a(x):4  noise(x)?  b(a noise)!")


@dataclass(frozen=True)
class Liar:
    """Claims a peak of one byte."""

    sequence: Any
    name: ClassVar[str] = "liar"
    summary: ClassVar[str] = "claims what is not so"
    source: ClassVar[str] = "none"

    def solve(
        self, problem: Problem, time_limit: float, progress: Progress | None = None
    ) -> Outcome:
        """The sequence, whatever it is."""
        return Outcome(Decision(self.sequence, 1, -1.0, True))


def test_a_false_claim_is_put_right() -> None:
    sequence = CASE.sequence("a noise a b")
    decision = checked(Liar(sequence), CASE.problem(5), 1.0, None).decision
    assert (decision.peak, decision.extra_cost) == (CASE.peak(sequence), 1.0)
    assert not decision.feasible


@pytest.mark.parametrize(
    ("sequence", "reason"),
    [
        ([0, 1, 3], "names nodes beyond 0 to 2"),
        ([-1, 0, 1, 2], "names nodes beyond 0 to 2"),
        ([0, 1], "leaves out nodes of the step"),
        ([0, 1, 1, 2], "recomputes nodes that must not be"),
        ([2, 0, 1], "reads tensors before they are made"),
    ],
)
def test_what_is_not_a_sequence_is_refused(sequence: Any, reason: str) -> None:
    array = np.asarray(sequence, np.int64)
    assert why_not_a_sequence(CASE.problem(9), array) == reason
    with pytest.raises(MemplanError) as caught:
        checked(Liar(array), CASE.problem(9), 1.0, None)
    assert caught.value.message == f"strategy 'liar' answers with a sequence that {reason}"
    assert caught.value.hint.startswith("this is a bug in memplan")


def test_what_was_asked_for_must_be_there() -> None:
    problem = CASE.problem(9, "a noise a b", "a")
    assert (
        why_not_a_sequence(problem, CASE.order) == "leaves out recomputations that were asked for"
    )


SECONDS = 30.0  # far more than any of these needs: they end by iterations
FORCED = "t0 t1 t2 t3 t4 t5 t6 t7 s t0 join"


def test_greedy_takes_no_time_and_keeps_the_order() -> None:
    decision = Greedy().solve(LONG_SKIP.problem(8), 1e9).decision
    assert LONG_SKIP.text(decision.sequence) == FORCED


def test_none_recomputes_nothing() -> None:
    for budget, feasible in ((12, True), (11, False)):
        problem = LONG_SKIP.problem(budget)
        decision = Keep().solve(problem, SECONDS).decision
        assert decision.sequence.tolist() == problem.order.tolist()
        assert (decision.peak, decision.feasible) == (12, feasible)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("auto", Search()),
        ("search", Search()),
        (" greedy ", Greedy()),
        ("none", Keep()),
        ("none{}", Keep()),
        ("search{order=0, seed=12}", Search(order=0, seed=12)),
        ("auto{iterations=5}", Search(iterations=5)),
    ],
)
def test_strategies_by_name(text: str, wanted: object) -> None:
    assert parse_strategy(text) == wanted


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "best",
            "unknown strategy 'best'",
            "strategies: auto, collection, greedy, list, memory, min-cut, mirror",
        ),
        ("search{depth=3}", "strategy 'search' has no option 'depth'", "seed"),
        ("greedy{seed=1}", "strategy 'greedy' has no option 'seed'", "it has: none"),
        ("search{order=2}", "search{order=2}: unknown value", "values: 0, 1"),
        ("search{seed=-1}", "search{seed=-1}: expected a whole number", ""),
        ("search{seed=1", "expected a strategy, got 'search{seed=1'", "NAME{option=value,...}"),
        ("", "expected a strategy, got ''", "NAME"),
    ],
)
def test_a_wrong_strategy_is_explained(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_strategy(text)
    assert caught.value.message == message
    assert hint in caught.value.hint


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_option_says_what_it_is_for(name: str) -> None:
    """ "cut=1: 0 or 1" tells nobody what 0 does."""
    kind = BUILT_IN[name]
    assert set(kind.meanings) == {option.name for option in options_of(kind)}
    assert all(option.meaning for option in options_of(kind))


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("a", Spec("a", {})),
        (" a-b_2 ", Spec("a-b_2", {})),
        ("a{}", Spec("a", {})),
        ("a{b=1, c = x y ,}", Spec("a", {"b": "1", "c": "x y"})),
        ("a{b}", Spec("a", {"b": ""})),
        ("a{b=c=d}", Spec("a", {"b": "c=d"})),
        ("", None),
        ("a b", None),
        ("a{b=1", None),
        ("a{b={}}", None),
        ("a}", None),
    ],
)
def test_a_spec_is_taken_apart(text: str, spec: Spec | None) -> None:
    assert split_spec(text) == spec
