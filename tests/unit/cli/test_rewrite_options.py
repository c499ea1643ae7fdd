"""``memplan rewrite``: options that exclude each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.running import runner
from memplan.errors import EXIT_USAGE


def test_rounds_and_seconds_are_not_both_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The clock would be ignored: refused before the model is looked at."""
    memplan = runner(tmp_path, monkeypatch, capfd)
    done = memplan("rewrite", "step.onnx", "--budget", "80%", "--effort", "3", "--time-limit", "2")
    assert done.returncode == EXIT_USAGE
    assert done.stderr.startswith("error: --effort counts rounds of the search, --time-limit its")
    assert done.stderr.count("\n") == 2


def test_a_plan_decides_the_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    memplan = runner(tmp_path, monkeypatch, capfd)
    done = memplan("rewrite", "step.onnx", "--plan", "plan.json", "--dim", "N=2")
    assert done.returncode == EXIT_USAGE
    assert done.stderr.startswith("error: --dim is decided by the plan\nhint: drop it")
