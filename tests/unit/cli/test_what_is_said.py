"""Statements of reports that were not true, or that two commands made differently."""

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


@pytest.mark.slow
@pytest.mark.parametrize("level", BITS)
def test_rewrite_says_whose_bits_the_new_file_computes(run: Memplan, level: str) -> None:
    """ "The same bits" is not so for the file's own nodes once they are fused."""
    done = run("rewrite", "m.onnx", "--budget", "100%", "--optimize", level, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert BITS[level] in " ".join(done.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize("option", ["-o", "--output"])
def test_device_writes_where_it_is_told(run: Memplan, tmp_path: Path, option: str) -> None:
    assert run("device", option, "device.txt").stdout == ""
    assert (tmp_path / "device.txt").read_text().startswith("ONNX Runtime ")
    assert run("device", option, "device.txt").returncode == 2
    assert run("device", option, "device.txt", "--force").returncode == 0
