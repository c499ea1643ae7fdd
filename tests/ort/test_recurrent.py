"""Recurrent training graphs: predicted peaks against ONNX Runtime's."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import memplan
from helpers.models import load_benchmark
from memplan.api.validate.validating import ValidateOptions, validate

pytestmark = pytest.mark.ort


@pytest.mark.parametrize(
    ("op", "steps", "recompute"),
    [
        ("LSTM", 1, "none"),
        ("LSTM", 20, "none"),
        ("LSTM", 20, "all"),
        ("GRU", 2, "none"),
        ("GRU", 20, "auto"),
        ("GRU", 20, "all"),
    ],
)
def test_peak(op: str, steps: int, recompute: str, tmp_path: Path) -> None:
    """To the byte; and the bits are those of the graph that makes nothing again."""
    bench = load_benchmark("plans.recurrent")
    forward = bench.forward_graph(bench.Case(op, steps, 4, 64, 64))
    paths = []
    for wish in ("none", recompute):
        model = memplan.gradients(forward, "loss", ["W", "R", "B"], scan_recompute=wish)
        paths.append(tmp_path / f"{wish}.onnx")
        onnx.save(model, paths[-1])
    found = validate(*paths, ValidateOptions(provider="cpu", runs=1))
    assert found.rewritten.predicted_peak_bytes == found.rewritten.measured_peak_bytes
    assert found.equality == "bitwise"
