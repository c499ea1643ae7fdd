"""The road from PyTorch, as it stands in ``docs/pytorch.md``: its file, its commands."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.models import ROOT
from helpers.pages import files
from memplan_cli.main import main

pytest.importorskip("torch")
pytest.importorskip("onnxscript")

SECTION = re.compile(r"^## From PyTorch\n(.*?)^## ", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def section() -> str:
    found = SECTION.search((ROOT / "docs" / "pytorch.md").read_text())
    return found[1]


def commands() -> Iterator[list[str]]:
    for kind, text in BLOCK.findall(section()):
        if not kind and text.startswith("memplan "):
            yield from (shlex.split(line)[1:] for line in text.splitlines())


def test_from_a_model_to_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, loop = (text for kind, text in BLOCK.findall(section()) if kind == "python")
    # Two layers learn as four do, in half of the time.
    source = files("pytorch.md")["model.py"].replace("depth=4", "depth=2")
    (tmp_path / "model.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    said = {}
    for command in commands():
        quick = {"rewrite": ["--effort", "2"], "validate": ["--runs", "1"]}.get(command[0], [])
        assert main([*command, *quick, "--format", "json"]) == 0, capsys.readouterr().err
        said[command[0]] = json.loads(capsys.readouterr().out)
    assert said["capture"]["optimizer"] == "AdamW"
    assert said["analyze"]["peak_bytes"] > said["rewrite"]["predicted_peak_bytes"]
    assert said["validate"]["proved"]
    exec(compile(loop, "loop.py", "exec"), {})
    said_losses = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(said_losses) == 4
    assert said_losses[-1] < said_losses[0] - 0.5
