"""``memplan analyze`` as people and scripts use it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import odd_models as odd
from helpers.commands import succeeded
from helpers.models import SAMPLES
from helpers.odd_models import saved
from helpers.processes import HANG_SECONDS
from helpers.running import Memplan

MODEL, OUT = "model.onnx", "model.memplan.onnx"


def test_the_first_line_is_the_answer(memplan: Memplan, model: Path) -> None:
    lines = succeeded(memplan("analyze", MODEL)).splitlines()
    assert re.fullmatch(r"peak 6\.66 KiB at step \d+/13 \((backward|forward): \w+\)", lines[0])
    assert len(lines) > 10
    assert succeeded(memplan("analyze", MODEL, "-q")).splitlines() == lines[:1]


@pytest.mark.parametrize("session", ["tuned", "default"])
def test_analysis_as_json(session: str, inside: Memplan, tmp_path: Path) -> None:
    shutil.copy(SAMPLES / "gpt_dynamic.onnx", tmp_path / MODEL)
    arguments = ("--dim", "N=3", "--format", "json", "--session", session)
    found = json.loads(succeeded(inside("analyze", MODEL, *arguments)))
    assert found["schema"] == "memplan.analysis/1"
    assert found["dims"] == {"N": 3}
    assert found["session"] == session
    assert found["peak_bytes"] == found["resident_bytes"] + found["dynamic_peak_bytes"]
    assert found["peak_bytes"] <= found["peak_with_workspace_bytes"]
    assert found["floor_bytes"] <= found["peak_bytes"]
    assert sum(found["by_class"].values()) == found["peak_bytes"]
    assert found["at_peak"]
    for live in found["at_peak"]:
        assert live["birth"] <= found["peak_step"] < live["death"] <= found["steps"]


def test_analysis_goes_to_a_file_or_to_stdout(inside: Memplan, model: Path, tmp_path: Path) -> None:
    text = succeeded(inside("analyze", MODEL, "--format", "json"))
    assert succeeded(inside("analyze", MODEL, "--format", "json", "-o", "-")) == text
    assert succeeded(inside("analyze", MODEL, "--format", "json", "-o", "a.json")) == ""
    assert (tmp_path / "a.json").read_text() == text
    (tmp_path / "a.json").write_text("old")
    assert inside("analyze", MODEL, "--format", "json", "-o", "a.json").returncode == 2
    assert (tmp_path / "a.json").read_text() == "old"
    succeeded(inside("analyze", MODEL, "--format", "json", "-o", "a.json", "--force"))
    assert (tmp_path / "a.json").read_text() == text


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_reader_that_goes_away(form: str, model: Path, tmp_path: Path) -> None:
    script = shutil.which("memplan", path=str(Path(sys.executable).parent))
    assert script is not None
    with subprocess.Popen(
        [script, "analyze", MODEL, "--format", form],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=HANG_SECONDS) == 141  # neither a finding nor a pass


@pytest.mark.parametrize("name", ["a b.onnx", "-x.onnx", "[bold]x[i].onnx", "\N{SNOWMAN}.onnx"])
def test_odd_file_names(name: str, inside: Memplan, tmp_path: Path) -> None:
    saved(odd.training(), tmp_path, name)
    assert f"{name}: 13 nodes" in succeeded(inside("analyze", "--", name))


def test_file_names_that_are_no_text(memplan: Memplan, tmp_path: Path) -> None:
    name = os.fsdecode(b"n\xff.onnx")
    saved(odd.training(), tmp_path, name)
    assert json.loads(succeeded(memplan("analyze", name, "--format", "json")))
    succeeded(memplan("analyze", name, "-o", "out.txt"))
    assert "13 nodes" in (tmp_path / "out.txt").read_text()


def test_a_terminal_that_knows_only_ascii(memplan: Memplan, model: Path) -> None:
    assert "peak 6.66 KiB" in succeeded(memplan("analyze", MODEL, PYTHONIOENCODING="ascii"))
