"""``analyze --frontier``: a sweep over budgets between the floor and the peak."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from helpers.training_steps import long_skips
from memplan.api.analysis import analyze
from memplan.api.sweep import frontier
from memplan.api.sweep.frontier import budgets_between, find_frontier, frontier_json
from memplan.api.sweep.sweep_result import Sweep
from memplan.api.sweep.sweeping import sweep
from memplan.errors import MemplanError


def test_budgets_are_spread_evenly_and_have_both_ends() -> None:
    assert budgets_between(10, 30, 3) == [10, 20, 30]
    assert budgets_between(30, 30) == [30]
    assert len(budgets_between(0, 1 << 30)) == 12


@pytest.mark.slow
def test_points_are_those_of_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peak costs nothing; the fields are those of the analysis's contract."""
    model = tmp_path / "m.onnx"
    onnx.save(long_skips(), model)
    monkeypatch.setattr(frontier, "budgets_between", lambda low, high: [low, high])
    asked: list[Sweep] = []

    def noted(*arguments: object, **options: object) -> Sweep:
        asked.append(sweep(*arguments, **options))  # type: ignore[arg-type]
        return asked[-1]

    monkeypatch.setattr(frontier, "sweep", noted)
    analysis = analyze(model)
    points = find_frontier(analysis, model)
    assert points == asked[0].points
    first, last = map(frontier_json, points)
    assert first["budget_bytes"] == analysis.floor_with_workspace_bytes
    assert last["budget_bytes"] == analysis.timeline.peak_with_workspace_bytes
    assert (last["feasible"], last["extra_cost_fraction"]) == (True, 0.0)
    assert list(last) == [
        "budget_bytes",
        "peak_with_workspace_bytes",
        "extra_cost_fraction",
        "recomputed_nodes",
        "feasible",
    ]


def test_a_model_that_cannot_be_read_is_an_error_not_a_point(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(long_skips(), model)
    analysis = analyze(model)
    with pytest.raises(MemplanError):
        find_frontier(analysis, tmp_path / "missing.onnx")
