"""The benchmark of training steps: its workers and its budgets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from helpers.models import load_benchmark
from helpers.networks import batches, training_step


def test_of_two_growths_that_are_close_the_smaller_is_planned_for() -> None:
    budgets = load_benchmark("steps.pytorch").budgets
    assert budgets([1000, 990, 500, 700]) == [990, 700, 500, 400]


@pytest.mark.ort
@pytest.mark.slow
def test_a_worker_steps_when_it_is_told_to(tmp_path: Path) -> None:
    bench = load_benchmark("steps.pytorch")
    step = training_step("mlp")
    onnx.save(step, tmp_path / "step.onnx")
    np.savez(tmp_path / "batch.npz", **batches(step, 1)[0])
    with bench.Worker(
        "m", "memplan", str(tmp_path / "step.onnx"), str(tmp_path / "batch.npz")
    ) as w:
        w.steps(2, counts=False)
        assert w.growth() >= 0
        for _ in range(3):
            w.steps(1)
        row = w.finish()
    assert len(row["seconds_by_round"]) == 3
    assert len(row["losses"]) == 5
    assert row["losses"][-1] < row["losses"][0]
    assert row["growth_bytes"] >= 0
    assert row["ready_seconds"] > 0


@pytest.mark.slow
def test_a_worker_that_fails_says_why(tmp_path: Path) -> None:
    bench = load_benchmark("steps.pytorch")
    with bench.Worker("m", "memplan", str(tmp_path / "none.onnx"), "none.npz") as worker:
        worker.steps(2)
        assert "none.onnx does not exist" in worker.finish()["failed"]
