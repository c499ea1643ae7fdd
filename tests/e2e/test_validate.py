"""``memplan validate`` as people and scripts use it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from helpers import odd_models as odd
from helpers.commands import integers_end_in_bytes, succeeded
from helpers.odd_models import saved
from helpers.running import Memplan

pytestmark = pytest.mark.e2e


MODEL, OUT = "model.onnx", "model.memplan.onnx"


VALIDATION_KEYS = {
    "schema",
    "provider",
    "session",
    "equality",
    "max_abs_diff",
    "original",
    "rewritten",
    "budget_bytes",
    "within_budget",
    "clones",
    "surviving_clones",
}


RUN_KEYS = {"predicted_peak_bytes", "measured_peak_bytes", "seconds_median"}


@pytest.mark.ort
def test_validation_as_json_and_in_words(inside: Memplan, model: Path, tmp_path: Path) -> None:
    arguments = ("rewrite", MODEL, "--budget", "6500", "--optimize", "none", "-q")
    succeeded(inside(*arguments))
    validate = ("validate", MODEL, OUT, "--runs", "1", "--no-plain")
    found = json.loads(succeeded(inside(*validate, "--format", "json")))
    assert found.keys() >= VALIDATION_KEYS
    assert found["schema"] == "memplan.validation/1"
    assert found["equality"] == "bitwise"
    assert found["max_abs_diff"] == 0
    assert found["budget_bytes"] == 6500
    assert found["within_budget"] is True
    assert found["surviving_clones"] == found["clones"]
    for which in ("original", "rewritten"):
        run = found[which]
        assert run.keys() >= RUN_KEYS
        assert integers_end_in_bytes(run)
        assert run["measured_peak_bytes"] == run["predicted_peak_bytes"]
    assert succeeded(inside(*validate, "-q", "-o", "verdict.txt")) == ""
    verdict = (tmp_path / "verdict.txt").read_text()
    assert verdict.startswith("measured peak 6,824 B -> ")
    assert verdict.count("\n") == 1


@pytest.mark.ort
def test_outputs_that_differ_are_a_finding(inside: Memplan, model: Path, tmp_path: Path) -> None:
    proto = odd.training()
    share = next(t for t in proto.graph.initializer if t.name == "share")
    share.CopyFrom(odd.constant("share", np.full((odd.BATCH, 1), 0.5)))
    saved(proto, tmp_path, "other.onnx")
    done = inside("validate", MODEL, "other.onnx", "--runs", "1", "--no-plain", "--format", "json")
    assert done.returncode == 1
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["equality"] == "different"
    assert found["max_abs_diff"] > 0
    assert any("outputs differ" in finding for finding in found["findings"])


@pytest.mark.ort
def test_inputs_from_a_file(memplan: Memplan, model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", x=np.ones((odd.BATCH, odd.WIDTH), np.float32))
    done = memplan(
        "validate", MODEL, MODEL, "--inputs", "inputs.npz", "--runs", "1", "--no-plain", "-q"
    )
    assert succeeded(done) == "measured peak 6,824 B -> 6,824 B (+0.0%), outputs bitwise\n"
