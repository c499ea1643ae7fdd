"""Strategies by name: the list of them, and how their answers are checked."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from helpers.models import SAMPLES
from helpers.problems import Case
from helpers.running import Memplan
from memplan.errors import MemplanError, UsageError
from memplan.solver.problem import Decision, Problem
from memplan.solver.strategies.builtin import BUILT_IN, parse_strategy
from memplan.solver.strategies.checked import checked, why_not_a_sequence
from memplan.solver.strategy import Outcome, Progress

MODEL = SAMPLES / "mlp_adamw.onnx"


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- The list --------------------------------------------------------------------------------


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


def test_listing_loads_no_solver() -> None:
    code = (
        "import sys; from memplan_cli.main import main; main(['strategies', '-q']);"
        "print({'onnx', 'numba', 'onnxruntime', 'highspy', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_numbers_with_few_values_are_checked() -> None:
    with pytest.raises(UsageError) as caught:
        parse_strategy("search{order=2}")
    assert caught.value.hint == "values: 0, 1"


# --- Answers are not believed ----------------------------------------------------------------


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
