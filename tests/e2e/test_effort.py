"""``rewrite --effort`` and ``--budget min`` as people use them."""

import json
from pathlib import Path

import pytest

from helpers.commands import succeeded
from helpers.running import Memplan
from helpers.training_steps import long_skips, saved_step

STEP = "step.onnx"


@pytest.fixture(autouse=True)
def step(tmp_path: Path) -> None:
    """A training step with something to recompute."""
    saved_step(long_skips, tmp_path)


def test_by_effort_the_file_is_the_same_byte_for_byte(inside: Memplan, tmp_path: Path) -> None:
    written = []
    for name in ("a.onnx", "b.onnx"):
        arguments = ("--budget", "75%", "--effort", "5", "-q", "-o", name)
        succeeded(inside("rewrite", STEP, *arguments))
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]


def test_min_is_the_lowest_that_is_found(inside: Memplan) -> None:
    arguments = ("--effort", "5", "--dry-run", "--format", "json")
    lowest = json.loads(succeeded(inside("rewrite", STEP, "--budget", "min", *arguments)))
    assert lowest["budget_bytes"] == lowest["predicted_peak_with_workspace_bytes"]
    assert lowest["budget_bytes"] < lowest["baseline_peak_bytes"]
    kept = inside("rewrite", STEP, "--budget", str(lowest["budget_bytes"]), *arguments)
    # The lowest plan is driven for whenever nothing fits, so its budget works as a budget.
    assert kept.returncode == 0
    text = succeeded(inside("rewrite", STEP, "--budget", "min", "--effort", "5", "--dry-run"))
    assert f"budget min = {lowest['budget_bytes']:,} B" in text


def test_min_leaves_nothing_to_reserve(inside: Memplan) -> None:
    done = inside("rewrite", STEP, "--budget", "min", "--reserve", "1MB")
    assert done.returncode == 2
    assert "reserve" in done.stderr


def test_the_report_says_how_good_the_plan_is(inside: Memplan) -> None:
    text = succeeded(inside("rewrite", STEP, "--budget", "75%", "--effort", "10", "--dry-run"))
    assert "certified: no plan" in text
    assert "any order" in text
