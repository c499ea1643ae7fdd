"""``memplan device``: what is there, and exit code 5 where CUDA is asked for and absent."""

import json
from pathlib import Path

import pytest

from helpers.running import Memplan
from memplan.runtime.gpu import find_gpu


def test_device_says_what_starts(memplan: Memplan) -> None:
    done = memplan("device", "--format", "json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["schema"] == "memplan.device/1"
    cpu = next(p for p in report["providers"] if p["provider"] == "cpu")
    assert (cpu["starts"], cpu["right"], cpu["problem"]) == (True, True, "")
    assert report["cpu"]["threads"] >= 1
    assert report["cpu"]["total_bytes"] >= report["cpu"]["available_bytes"] > 0
    cuda = next(p for p in report["providers"] if p["provider"] == "cuda")
    if isinstance(find_gpu(), str):
        assert not cuda["starts"]
        assert report["gpu"] is None
        assert report["reserve_bytes"] is None


def test_device_as_text(memplan: Memplan) -> None:
    done = memplan("device")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("ONNX Runtime 1.")
    assert "cpu: starts" in lines
    assert lines[-1].startswith("CPU: ")


@pytest.mark.skipif(not isinstance(find_gpu(), str), reason="this machine has a GPU")
@pytest.mark.parametrize("form", ["text", "json"])
def test_absent_cuda_says_what_to_install(memplan: Memplan, form: str) -> None:
    done = memplan("device", "--provider", "cuda", "--format", form)
    assert done.returncode == 5
    assert done.stdout == ""
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: CUDA was asked for")
    assert "onnxruntime-gpu" in hint


@pytest.mark.skipif(not isinstance(find_gpu(), str), reason="this machine has a GPU")
def test_a_plan_for_absent_cuda_is_for_the_files_own_nodes(inside: Memplan, model: Path) -> None:
    common = ("rewrite", model, "--budget", "100%", "--provider", "cuda", "--dry-run")
    greedy = ("--strategy", "greedy", "--effort", "1")  # by the clock, a busy machine plans less
    done = inside(*common, *greedy)
    assert done.returncode == 0
    assert "planned with the file's own nodes, none fused: CUDA was asked for" in done.stdout
    told, asked = (
        json.loads(inside(*common, *greedy, "--format", "json", *more).stdout)
        for more in ((), ("--optimize", "none"))
    )
    assert told["optimize"] == "none"
    note = "planned with the file's own nodes, none fused"
    assert any(each.startswith(note) for each in told["assumptions"])
    assert not any(each.startswith(note) for each in asked["assumptions"])
    assert told["predicted_peak_bytes"] == asked["predicted_peak_bytes"]
