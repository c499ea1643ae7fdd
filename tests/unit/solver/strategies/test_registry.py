"""Strategies by name: the list of them, and those that installed packages bring."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from helpers.models import ROOT, SAMPLES
from helpers.problems import Case, Op
from helpers.running import Memplan
from memplan.errors import MemplanError, UsageError
from memplan.solver.problem import Decision, Problem
from memplan.solver.strategies.builtin import BUILT_IN, list_strategies, parse_strategy
from memplan.solver.strategies.checked import checked, why_not_a_sequence
from memplan.solver.strategy import Outcome, Progress

Install = Callable[..., None]
MODEL = SAMPLES / "mlp_adamw.onnx"
GOOD = """
from dataclasses import dataclass
from typing import ClassVar

@dataclass(frozen=True)
class Good:
    name: ClassVar[str] = "good"
    summary: ClassVar[str] = "does nothing"
    source: ClassVar[str] = "nowhere"
    count: int = 3
    how: str = ""

    def solve(self, problem, time_limit, progress=None):
        raise ZeroDivisionError("no luck")
"""


@pytest.fixture
def install(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a package with entry points on the path, as an installer would."""

    def put(package: str, points: dict[str, str], **modules: str) -> None:
        site = tmp_path_factory.mktemp("site")
        for module, text in modules.items():
            (site / f"{module}.py").write_text(text)
            monkeypatch.delitem(sys.modules, module, raising=False)
        info = site / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[memplan.strategies]", *lines]) + "\n")
        monkeypatch.syspath_prepend(str(site))

    return put


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


# --- Packages --------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_example_of_the_guide(install: Install, inside: Memplan, tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "extending.md").read_text()
    code, *_ = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    (toml,) = re.findall(r"```toml\n(.*?)```", guide, re.DOTALL)
    import tomllib

    project = tomllib.loads(toml)["project"]
    install(project["name"], project["entry-points"]["memplan.strategies"], largest=code)
    assert "largest\n  recompute the largest stashes\n" in succeeded(inside("strategies"))
    assert "  package: memplan-largest 1.0\n" in succeeded(inside("strategies"))
    done = inside(
        "rewrite",
        MODEL,
        "--strategy",
        "largest{count=1}",
        "--budget",
        "100%",
        "-o",
        "fits.onnx",
        "--optimize",
        "none",
        "--passes",  # a search for a lower order would end by the clock
        "none",
        "--format",
        "json",
    )
    found = json.loads(succeeded(done))
    assert found["strategy"] == "largest"
    assert found["recomputed_nodes"] >= 1
    assert found["predicted_peak_bytes"] <= found["baseline_peak_with_workspace_bytes"]
    assert (tmp_path / "fits.onnx").exists()


def test_options_of_a_package(install: Install) -> None:
    install("acme", {"good": "acme_good:Good"}, acme_good=GOOD)
    strategy: Any = parse_strategy("good{count=5, how=any text}")
    assert (strategy.count, strategy.how) == (5, "any text")
    (row,) = [item for item in list_strategies() if item.name == "good"]
    assert (row.owner, row.broken) == ("acme 1.0", "")
    assert [(o.name, o.default, o.kind) for o in row.options] == [
        ("count", 3, "number"),
        ("how", "", "text"),
    ]


def test_what_a_package_leaves_out_has_the_defaults_of_a_strategy(install: Install) -> None:
    install(
        "acme",
        {"good": "acme_good:Good", "tagged": "acme_tagged:Good"},
        acme_good=GOOD,
        acme_tagged=GOOD.replace('"good"', '"tagged"').replace(
            "    count", "    clone_tags: ClassVar = {'acme': 'yes'}\n    count"
        ),
    )
    plain, tagged = parse_strategy("good"), parse_strategy("tagged")
    assert (plain.words, plain.ignores_budget, plain.clone_tags) == ({}, False, {})
    assert not plain.takes_forms
    assert (tagged.ignores_budget, tagged.clone_tags) == (False, {"acme": "yes"})


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("good", "acme_absent:Good", "ModuleNotFoundError: No module named 'acme_absent'"),
        ("good", "acme_good:Bad", "AttributeError: module 'acme_good' has no attribute 'Bad'"),
        ("good", "acme_raises:Good", "ValueError: first line second line"),
        ("good", "acme_good:ClassVar", "is not a dataclass"),
        ("better", "acme_good:Good", "its class is named 'good'"),
        ("a b", "acme_good:Good", "its name is not made of letters, digits, - and _"),
        ("good", "acme_less:Good", "Good has no text 'source'"),
        ("good", "acme_lazy:Good", "Good has no method 'solve'"),
        ("good", "acme_wordy:Good", "Good.words is not a mapping"),
        ("good", "acme_open:Good", "option 'count' has no whole number or text as its default"),
    ],
)
def test_a_broken_package_stops_only_who_asks_for_it(
    install: Install, inside: Memplan, name: str, value: str, reason: str
) -> None:
    install(
        "acme",
        {name: value},
        acme_good=GOOD,
        acme_raises="raise ValueError('first line\\nsecond line')",
        acme_less=GOOD.replace("    source", "    sauce"),
        acme_lazy=GOOD.replace("def solve", "def sleep"),
        acme_wordy=GOOD.replace("    count", "    words: ClassVar = ['count']\n    count"),
        acme_open=GOOD.replace("int = 3", "float = 3.0"),
    )
    assert parse_strategy("greedy") == BUILT_IN["greedy"]()
    text = succeeded(inside("strategies"))
    assert f"{name}: broken\n  strategy '{name}' of acme 1.0 cannot be used: " in text
    assert reason in text
    assert name not in succeeded(inside("strategies", "-q")).splitlines()
    (row,) = [item for item in list_strategies() if item.name == name]
    assert (row.options, row.owner) == ((), "acme 1.0")
    if name == "a b":
        return
    done = inside("rewrite", MODEL, "--budget", "80%", "--strategy", name)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert reason in lines[0]
    assert "acme 1.0" in lines[1]


@pytest.mark.parametrize("name", ["greedy", "auto", "good"])
def test_a_name_has_one_owner(install: Install, inside: Memplan, name: str) -> None:
    install("acme", {name: "acme_good:Good"}, acme_good=GOOD)
    if name == "good":
        install("zeta", {name: "zeta_good:Good"}, zeta_good=GOOD)
    owners = {"acme 1.0", "zeta 1.0" if name == "good" else "memplan"}
    with pytest.raises(UsageError) as caught:
        parse_strategy(name)
    assert all(owner in caught.value.message for owner in owners)
    assert parse_strategy("mirror") == BUILT_IN["mirror"]()
    assert f"{name}: broken\n  strategy '{name}' is offered by " in succeeded(inside("strategies"))


# --- Answers are not believed ----------------------------------------------------------------


CASE = Case(
    Op("a", "x", 4),
    Op("noise", "x", 1, again=False),
    Op("b", "a noise", output=True),
    resident="x",
)


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
        ([0.0, 1.0, 2.0], "is not a list of node ids"),
        ([[0, 1, 2]], "is not a list of node ids"),
        (None, "is not a list of node ids"),
        ([0, 1, 3], "names nodes beyond 0 to 2"),
        ([-1, 0, 1, 2], "names nodes beyond 0 to 2"),
        ([0, 1], "leaves out nodes of the step"),
        ([0, 1, 1, 2], "recomputes nodes that must not be"),
        ([2, 0, 1], "reads tensors before they are made"),
    ],
)
def test_what_is_not_a_sequence_is_refused(sequence: Any, reason: str) -> None:
    array = np.asarray(sequence)
    assert why_not_a_sequence(CASE.problem(9), array) == reason
    with pytest.raises(MemplanError) as caught:
        checked(Liar(array), CASE.problem(9), 1.0, None)
    assert caught.value.message == f"strategy 'liar' answers with a sequence that {reason}"
    assert caught.value.hint.startswith("this is a bug in the package of ")


def test_what_was_asked_for_must_be_there() -> None:
    problem = CASE.problem(9, "a noise a b", "a")
    assert (
        why_not_a_sequence(problem, CASE.order) == "leaves out recomputations that were asked for"
    )


@pytest.mark.slow
def test_a_package_that_fails_is_blamed(install: Install, inside: Memplan) -> None:
    install("acme", {"good": "acme_good:Good"}, acme_good=GOOD)
    done = inside("rewrite", MODEL, "--budget", "90%", "--strategy", "good")
    assert done.returncode == 70
    assert done.stderr.splitlines()[-2:] == [
        "error: strategy 'good' fails: ZeroDivisionError: no luck",
        "hint: this is a bug in the package of acme_good; -vv shows where",
    ]
