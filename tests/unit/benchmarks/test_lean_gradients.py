"""The benchmark that compares generated training graphs with exported ones."""

from __future__ import annotations

import json
from pathlib import Path

import onnx

from helpers.graphs import parse
from helpers.models import load_benchmark

FORWARD = """g (float[8,16] batch_0, float[16,16] w) => (float loss)
    { a = MatMul(batch_0, w) b = Sigmoid(a) c = Sigmoid(b) loss = ReduceSum<keepdims = 0>(c) }"""


def test_figures_and_record(tmp_path: Path) -> None:
    bench = load_benchmark("capture.gradients")
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
    mine, theirs = json.loads(record.read_text())["results"][::-1]
    assert (mine["nodes"], theirs["nodes"]) == (ours.nodes, 4)
