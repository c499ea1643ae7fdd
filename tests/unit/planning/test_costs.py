"""Costs files, and estimates on the scale of what was measured."""

import json
import math
from pathlib import Path

import pytest

from helpers.graphs import graph_of, open_text
from memplan.errors import UsageError
from memplan.ops.cost import Device
from memplan.planning.costs import (
    OpTime,
    by_operator,
    check_costs,
    measured_costs,
    read_costs,
    total,
)

# A byte a second: a node costs what it reads and writes, 2 KiB here.
BYTES = Device("bytes", 1e30, 1.0, 0.0, "")
TEXT = """g (float[256] x) => (float[256] e) {
    [a] p = Exp (x)
    [b] q = Exp (p)
    [v] r = Identity (q)
    [c] s = Relu (r)
    [d] e = Tanh (s)
}"""
NODE = 2048.0


def test_operators_stand_worst_estimate_first() -> None:
    rows = by_operator(graph_of(TEXT), BYTES, "cpu", {"a": NODE, "b": 3 * NODE, "c": 9 * NODE})
    assert rows == (OpTime("Relu", 1, 9 * NODE, NODE), OpTime("Exp", 2, 4 * NODE, 2 * NODE))
    assert [row.ratio for row in rows] == [9.0, 2.0]
    assert total(rows).measured_seconds == 13 * NODE
    assert total(rows).nodes == 3


def test_a_view_has_no_ratio() -> None:
    (row,) = by_operator(graph_of(TEXT), BYTES, "cpu", {"v": 1e-6})
    assert row.ratio == math.inf
    assert row.as_json()["ratio"] is None
    assert OpTime("Identity", 1, 0.0, 0.0).ratio == 1.0


def test_unmeasured_nodes_are_estimated_on_the_scale_of_the_measured_ones() -> None:
    graph = graph_of(TEXT)
    costs = measured_costs("f", graph, BYTES, "cpu", {"a": 0.5 * NODE, "c": 1.5 * NODE, "v": 1.0})
    exp, _, view, relu, tanh = costs.estimate(graph)
    assert (exp, view, relu) == (0.5 * NODE, 0.0, 1.5 * NODE)
    # Nothing like it was measured: the ratio of all that was.
    assert tanh == pytest.approx((2 * NODE + 1) / 2)
    assert costs.measured_nodes(graph) == 3


def test_costs_of_another_model_dimension_or_provider_are_refused(tmp_path: Path) -> None:
    model = open_text(TEXT.replace("256", "N"), dims={"N": 4}).prepared
    path = tmp_path / "costs.json"
    good = {"fingerprint": model.fingerprint, "provider": "cpu", "dims": {"N": 4}, "seconds": {}}

    def refusal(**changes: object) -> str:
        path.write_text(json.dumps({**good, **changes}))
        with pytest.raises(UsageError) as caught:
            check_costs(read_costs(path), model, "cpu")
        return caught.value.message

    path.write_text(json.dumps(good))
    check_costs(read_costs(path), model, "cpu")
    assert "another model" in refusal(fingerprint="0" * 32)
    assert "--dim N=8, this run has --dim N=4" in refusal(fingerprint="0" * 32, dims={"N": 8})
    assert "measured on cuda, the plan is for cpu" in refusal(provider="cuda")
