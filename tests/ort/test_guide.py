"""The guide's road from PyTorch, as it stands in ``docs/guide.md``: its file, its commands."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memplan
from helpers.models import ROOT
from memplan.proto.metadata import get_metadata
from memplan.proto.read import read_model
from memplan_cli.main import main

pytest.importorskip("torch")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.ort

SECTION = re.compile(r"^## From PyTorch\n(.*?)^## ", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def section() -> str:
    found = SECTION.search((ROOT / "docs" / "guide.md").read_text())
    assert found is not None
    return found[1]


def commands() -> Iterator[list[str]]:
    for kind, text in BLOCK.findall(section()):
        if not kind and text.startswith("memplan "):
            yield from (shlex.split(line)[1:] for line in text.splitlines())


def losses(path: Path, steps: int) -> list[float]:
    """A training on one batch that can be learned: every token predicts itself."""
    session = memplan.load(path)
    names = [value.name for value in session.get_outputs()]
    new: Any = get_metadata(read_model(path))["new_values"]
    state = {
        value.name: np.zeros(value.shape, np.float32)
        for value in session.get_inputs()
        if value.name.endswith((".exp_avg", ".exp_avg_sq"))
    }
    tokens = np.random.default_rng(0).integers(0, 256, (16, 64))
    found = []
    for _ in range(steps):
        values = session.run(names, {**state, "tokens": tokens, "labels": tokens})
        result = dict(zip(names, values, strict=True))
        state = {old: result[output] for output, old in new.items()}
        found.append(float(result["loss"]))
    return found


def test_from_a_model_to_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (source,) = (text for kind, text in BLOCK.findall(section()) if kind == "python")
    # Two layers learn as four do, in half of the time.
    (tmp_path / "model.py").write_text(source.replace("depth=4", "depth=2"))
    monkeypatch.chdir(tmp_path)
    said = {}
    for command in commands():
        quick = {"rewrite": ["--effort", "2"], "validate": ["--runs", "1"]}.get(command[0], [])
        assert main([*command, *quick, "--format", "json"]) == 0, capsys.readouterr().err
        said[command[0]] = json.loads(capsys.readouterr().out)
    assert said["capture"]["optimizer"] == "AdamW"
    assert said["analyze"]["peak_bytes"] > said["rewrite"]["predicted_peak_bytes"]
    assert said["validate"]["proved"]
    run = losses(tmp_path / "fits.onnx", 8)
    assert run[-1] < run[0] - 0.5
    np.testing.assert_allclose(run, losses(tmp_path / "step.onnx", 8), rtol=1e-5)
