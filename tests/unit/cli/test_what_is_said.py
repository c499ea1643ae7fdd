"""Statements of reports that were not true, or that two commands made differently."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest

from helpers.running import Memplan
from helpers.training_steps import long_skips

BITS = {
    "none": "outputs are bit-identical to the original in a tuned session, unoptimized like it",
    "extended": "outputs are bit-identical to the original at the same optimization level "
    "(extended); --optimize none matches the unoptimized file",
}


@pytest.fixture
def run(inside: Memplan, tmp_path: Path) -> Memplan:
    onnx.save(long_skips(), tmp_path / "m.onnx")
    return inside


@pytest.mark.ort
@pytest.mark.slow
@pytest.mark.parametrize("level", BITS)
def test_rewrite_says_whose_bits_the_new_file_computes(run: Memplan, level: str) -> None:
    """ "The same bits" is not so for the file's own nodes once they are fused."""
    done = run("rewrite", "m.onnx", "--budget", "100%", "--optimize", level, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert BITS[level] in " ".join(done.stdout.split())


def test_the_floor_of_analyze_is_the_one_that_a_budget_is_held_against(run: Memplan) -> None:
    found = json.loads(run("analyze", "m.onnx", "--format", "json").stdout)
    floor = found["floor_with_workspace_bytes"]
    text = run("analyze", "m.onnx").stdout
    page = run("analyze", "m.onnx", "--format", "html").stdout
    done = run("rewrite", "m.onnx", "--budget", str(floor - 1), "--optimize", "none")
    assert done.returncode == 4
    shown = re.search(r"below the floor ([\d,]+) B \(([^)]+)\)", done.stderr)
    assert shown is not None, done.stderr
    assert int(shown[1].replace(",", "")) == floor
    assert f"floor {shown[2]}" in text
    assert f"floor {shown[2]}" in page
    assert found["floor_reason"].split(" needs")[0] in done.stderr


@pytest.mark.ort
@pytest.mark.slow
@pytest.mark.parametrize("option", ["-o", "--output"])
def test_device_writes_where_it_is_told(run: Memplan, tmp_path: Path, option: str) -> None:
    assert run("device", option, "device.txt").stdout == ""
    assert (tmp_path / "device.txt").read_text().startswith("ONNX Runtime ")
    assert run("device", option, "device.txt").returncode == 2
    assert run("device", option, "device.txt", "--force").returncode == 0
