"""The benchmark that compares generated training graphs with exported ones."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from helpers.graphs import parse
from helpers.models import load_benchmark

FORWARD = """g (float[8,16] batch_0, float[16,16] w) => (float loss)
    { a = MatMul(batch_0, w) b = Sigmoid(a) c = Sigmoid(b) loss = ReduceSum<keepdims = 0>(c) }"""


def test_figures_and_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, tables = load_benchmark("capture.gradients"), load_benchmark("tables.rows")
    forward = parse(FORWARD)
    forward.metadata_props.add(key="parameters", value="w")
    ours = bench.differentiated("net", forward)
    assert ours.stash_bytes == 2 * 8 * 16 * 4  # the outputs of both; the input is no stash
    assert ours.peak_bytes >= ours.stash_bytes
    assert ours.nodes > ours.backward_nodes > 0
    for folder in ("forward", "exported"):
        (tmp_path / folder).mkdir()
    onnx.save(forward, tmp_path / "forward" / "net.onnx")
    onnx.save(forward, tmp_path / "exported" / "net.onnx")
    record = tmp_path / "lean.json"
    arguments = [
        "--forward",
        str(tmp_path / "forward"),
        "--exported",
        str(tmp_path / "exported"),
        "--json",
        str(record),
    ]
    assert bench.main(arguments) == 0
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    lines = tables.lean(tables.load("lean"))
    assert len(lines) == 3
    assert f"{ours.nodes:,} (4)" in lines[2]
