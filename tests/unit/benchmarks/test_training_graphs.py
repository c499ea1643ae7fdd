"""The benchmark that compares strategies: it reports only what holds, and all of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from helpers.models import SAMPLES, load_benchmark
from memplan.errors import UsageError
from memplan.solver.search.warm_up import warm_up
from memplan.solver.strategies.builtin import parse_strategy
from memplan.solver.strategy import Outcome


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """The benchmark, which is not installed with the package."""
    warm_up()
    return load_benchmark("plans.training_graphs")


def test_a_budget_is_a_share_of_the_dynamic_peak(bench: ModuleType) -> None:
    loaded = bench.load(SAMPLES / "unet.onnx", "h200")
    row = bench.run_point(loaded, "80%", "segments", 5.0, "h200")
    assert row.original_peak_bytes == loaded.peak
    assert row.budget_bytes == loaded.peak * 8 // 10
    assert row.fits
    assert row.floor_bytes <= row.peak_bytes <= row.budget_bytes
    assert row.extra_cost_percent > 0
    assert row.bound_kind is None
    none = bench.run_point(loaded, "80%", "none", 5.0, "h200")
    assert (none.fits, none.peak_bytes) == (False, loaded.peak)
    assert (none.extra_cost_percent, none.recomputed_nodes) == (0.0, 0)


def test_costs_are_those_of_the_device(bench: ModuleType) -> None:
    first, second = (bench.load(SAMPLES / "unet.onnx", device) for device in ("h200", "cpu"))
    base = [loaded.prepared.encoded.problem(1).base_cost for loaded in (first, second)]
    assert base[0] < base[1]
    with pytest.raises(UsageError, match="unknown device profile"):
        bench.load(SAMPLES / "unet.onnx", "abacus")


@pytest.mark.parametrize(
    "lie", [{"peak": 1}, {"feasible": False}, {"extra_cost": 0.0}], ids=lambda lie: next(iter(lie))
)
def test_a_false_claim_is_refused(bench: ModuleType, lie: dict[str, object]) -> None:
    loaded = bench.load(SAMPLES / "unet.onnx", "h200")
    problem = loaded.prepared.encoded.problem(loaded.peak * 8 // 10)
    decision = parse_strategy("segments").solve(problem, 5.0).decision
    bench.verify(loaded, problem, Outcome(decision), "segments")
    with pytest.raises(bench.VerificationError, match="segments claims"):
        bench.verify(loaded, problem, Outcome(replace(decision, **lie)), "segments")


def test_rows_are_printed_and_written(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.json"
    arguments = [
        "--models",
        str(SAMPLES),
        "--only",
        "unet",
        "--budget",
        "80%",
        "--budget",
        "1%",
        "--strategy",
        "none",
        "--strategy",
        "min-cut",
        "--seconds",
        "5",
        "--json",
        str(out),
    ]
    assert bench.main(arguments) == 0
    rows = json.loads(out.read_text())["results"]
    assert [(row["budget"], row["strategy"]) for row in rows] == [
        ("80%", "none"),
        ("80%", "min-cut"),
    ]
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 4
    assert "below the floor" in printed[3]
    with pytest.raises(ValueError, match="no model files"):
        bench.main([*arguments, "--only", "nothing", "--models", str(tmp_path)])
