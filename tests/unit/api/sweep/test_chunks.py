"""``sweep --chunk``: every point is planned with chunks, too."""

from __future__ import annotations

from pathlib import Path

import onnx

from helpers.chunking import layered
from helpers.sweeps import swept


def test_points_fit_in_chunks_that_do_not_without(tmp_path: Path) -> None:
    dims = {"R": (1024, 2048)}
    model = layered(depth=2)
    for value in model.graph.input:
        first = value.type.tensor_type.shape.dim[0]
        if first.dim_value == 2048:
            first.Clear()
            first.dim_param = "R"
    del model.graph.value_info[:]
    path = tmp_path / "layers.onnx"
    onnx.save(model, path)
    without = swept(path, "35%", dims=dims)
    chunks = swept(path, "35%", dims=dims, chunk="layers")
    assert not [point for point in without.points if point.planned]
    for point in chunks.points:
        assert point.planned
        assert point.planned.extra_cost_fraction > 0
