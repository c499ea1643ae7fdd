"""Recurrent training graphs: predicted peaks against ONNX Runtime's."""

from pathlib import Path

import onnx
import pytest

from helpers.effort import few_by_day
from helpers.loops import layer, recompute_in_scans
from memplan.api.validate.validating import ValidateOptions, validate


@pytest.mark.parametrize(
    ("op", "steps", "recompute"),
    few_by_day(
        [
            ("LSTM", 20, "all"),
            ("LSTM", 1, ""),
            ("LSTM", 20, ""),
            ("GRU", 2, ""),
            ("GRU", 20, "auto"),
            ("GRU", 20, "all"),
        ]
    ),
)
def test_peak(op: str, steps: int, recompute: str, tmp_path: Path) -> None:
    """To the byte; and the bits are those of the graph that recomputes nothing."""
    plain = layer(op, steps, 4, 64, 64).prepared.proto
    found = recompute_in_scans(plain, recompute) if recompute else plain
    paths = [tmp_path / "plain.onnx", tmp_path / "found.onnx"]
    for model, path in zip((plain, found), paths, strict=True):
        onnx.save(model, path)
    answer = validate(*paths, ValidateOptions(provider="cpu", runs=1))
    assert answer.rewritten.predicted_peak_bytes == answer.rewritten.measured_peak_bytes
    assert answer.equality == "bitwise"
