"""``memplan validate`` as people and scripts use it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import Any

import numpy as np
import onnx
import pytest

from helpers import odd_models as odd
from helpers.commands import succeeded
from helpers.graphs import parse
from helpers.odd_models import saved
from helpers.processes import HANG_SECONDS, as_from_a_terminal, eventually
from helpers.running import Memplan
from helpers.training_steps import long_skips
from memplan.errors import EXIT_ENVIRONMENT

MODEL, OUT = "model.onnx", "model.memplan.onnx"


def test_validation_as_json_and_in_words(inside: Memplan, model: Path, tmp_path: Path) -> None:
    arguments = ("rewrite", MODEL, "--budget", "6500", "--optimize", "none", "-q")
    succeeded(inside(*arguments))
    validate = ("validate", MODEL, OUT, "--runs", "1", "--no-plain")
    found = json.loads(succeeded(inside(*validate, "--format", "json")))
    assert found["schema"] == "memplan.validation/1"
    assert found["equality"] == "bitwise"
    assert found["max_abs_diff"] == 0
    assert found["budget_bytes"] == 6500
    assert found["within_budget"] is True
    assert found["surviving_clones"] == found["clones"]
    for which in ("original", "rewritten"):
        run = found[which]
        assert run["measured_peak_bytes"] == run["predicted_peak_bytes"]
    assert succeeded(inside(*validate, "-q", "-o", "verdict.txt")) == ""
    verdict = (tmp_path / "verdict.txt").read_text()
    assert verdict.startswith(
        "proved: equivalent by construction, bitwise equal in 2 draws; peak measured 6,824 B -> "
    )
    assert verdict.endswith("; within budget in every run\n")
    assert verdict.count("\n") == 1


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


def test_inputs_from_a_file(memplan: Memplan, model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", x=np.ones((odd.BATCH, odd.WIDTH), np.float32))
    done = memplan(
        "validate", MODEL, MODEL, "--inputs", "inputs.npz", "--runs", "1", "--no-plain", "-q"
    )
    assert succeeded(done) == (
        "proved: equivalent by construction, bitwise equal in 2 draws; "
        "peak measured 6,824 B -> 6,824 B (+0.0%), as predicted; the same peak, and no budget\n"
    )


def test_swapped_arguments_are_a_finding_and_not_a_proof(inside: Memplan, tmp_path: Path) -> None:
    """They were "proved", with a peak that rose by 67%."""
    saved(long_skips(), tmp_path)
    options = ("--budget", "80%", "--optimize", "none", "--strategy", "greedy", "-o", "fits.onnx")
    assert inside("rewrite", MODEL, *options).returncode == 0
    right = inside("validate", MODEL, "fits.onnx", "--no-plain", "--runs", "1")
    assert right.returncode == 0, right.stdout
    done = inside("validate", "fits.onnx", MODEL, "--no-plain", "--runs", "1")
    assert done.returncode == 1
    text = " ".join(done.stdout.split())
    assert text.startswith("not proved: ")
    assert "the arguments seem to have changed places" in text


def _endless() -> onnx.ModelProto:
    """A loop that the runtime never ends."""
    return parse(
        """g (float[4] x) => (float[4] y) <int64 many = {9223372036854775807}, bool on = {1}> {
          y = Loop (many, on, x) <body = b (int64 i, bool c, float[4] s) => (bool d, float[4] t)
            { d = Identity(c)  t = Sin(s) }> }"""
    )


def test_a_model_that_does_not_end_is_stopped(inside: Memplan, tmp_path: Path) -> None:
    saved(_endless(), tmp_path)
    commands = {
        "running": ("validate", MODEL, MODEL, "--no-plain"),
        "profiling": ("profile", MODEL, "-o", "costs.json"),
    }
    for doing, command in commands.items():
        done = inside(*command, "--time-limit", "1")
        assert done.returncode == EXIT_ENVIRONMENT
        error, hint = done.stderr.splitlines()
        assert error == f"error: {doing} {MODEL} took more than 1 s and was stopped"
        assert "--time-limit" in hint


def test_a_model_with_a_string_output_is_compared_too(inside: Memplan, tmp_path: Path) -> None:
    """Its bytes are not predicted, which is said and is not a finding."""
    model = parse(
        "g (float[4] x) => (string[4] y, float[4] z) { z = Relu(x)  y = Cast <to = 8> (z) }"
    )
    saved(model, tmp_path)
    done = inside("validate", MODEL, MODEL, "--no-plain", "-v")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no finding, but not proved: equivalent by construction, bitwise")
    why = "strings, sequences or optionals are passed through, not counted: y"
    assert why in " ".join(done.stdout.split())


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    "signal", [SIGTERM, pytest.param(SIGKILL, marks=pytest.mark.nightly)], ids=["term", "kill"]
)
def test_no_child_outlives_it(signal: Signals, tmp_path: Path) -> None:
    saved(_endless(), tmp_path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    program = "from memplan_cli.main import run; run()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "validate", MODEL, MODEL, "--no-plain"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.DEVNULL,
        preexec_fn=as_from_a_terminal,
    )
    child = _waited(lambda: _children(process.pid))[0]
    # It runs the model once it has its profile.
    _waited(lambda: [*temporary.glob("*/*/run*.json")])
    process.send_signal(signal)
    process.wait(HANG_SECONDS)
    assert process.returncode == (143 if signal == SIGTERM else -SIGKILL)
    _waited(lambda: not Path(f"/proc/{child}").exists() or _is_dead(child))
    if signal == SIGTERM:
        assert not [*temporary.iterdir()]


def _children(parent: int) -> list[int]:
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(pid) for path in tasks for pid in path.read_text().split()]


def _is_dead(process: int) -> bool:
    """Ended, though nobody has asked for its exit code."""
    try:
        return ") Z " in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return True


def _waited(look: Callable[[], Any]) -> Any:
    """What ``look`` finds in the end."""
    assert eventually(lambda: bool(look()))
    return look()
