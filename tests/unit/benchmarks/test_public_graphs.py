"""The harness for graphs that are not ONNX: what it reads, promises and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from helpers.models import ROOT, load_benchmark


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """The harness; it is no part of the wheel."""
    return load_benchmark("plans.public_graphs")


@pytest.fixture(scope="module")
def instances() -> ModuleType:
    """The reader and verifier."""
    return load_benchmark("plans.instances")


def skip_graph() -> dict[str, Any]:
    """a (large, cheap) is read at once and at the end; b, c, d need room in between.

    In order a b c d e: 10 + 1, ... the peak is at d: a, c and d together.
    """
    sizes = {7: 10, 3: 1, 5: 8, 9: 8, 2: 1}
    costs = {7: 2, 3: 5, 5: 5, 9: 5, 2: 3}
    links = [(7, 3), (3, 5), (5, 9), (9, 2), (7, 2)]
    return {
        "graph": {},
        "nodes": [
            {"id": k, "name": str(k), "backward": False, "cost_cpu": costs[k], "cost_ram": sizes[k]}
            for k in sizes
        ],
        "links": [{"source": a, "target": b} for a, b in links],
    }


def layered_graph() -> dict[str, Any]:
    """The same in the other format: an order of its own, links keyed 0 and 1."""
    data = skip_graph()
    return {
        "graph": {"order": [7, 3, 5, 9, 2]},
        "nodes": [
            {
                "name": node["id"],
                "duration": node["cost_cpu"],
                "out_cost": node["cost_ram"],
                "param_cost": 0,
            }
            for node in reversed(data["nodes"])
        ],
        "links": [{"0": link["source"], "1": link["target"]} for link in data["links"]],
    }


@pytest.mark.parametrize("data", [skip_graph(), layered_graph()], ids=["checkmate", "layered"])
@pytest.mark.parametrize("order", ["fixed", "free"])
def test_the_contract(
    bench: ModuleType, instances: ModuleType, data: dict[str, Any], order: str, tmp_path: Path
) -> None:
    folder = tmp_path / "graphs"
    folder.mkdir()
    (folder / "small.json").write_text(json.dumps(data))
    out, record = tmp_path / "out.json", tmp_path / "record.json"
    arguments = ["--instances", str(folder), "--ratio", "0.75", "--order", order]
    code = bench.main([*arguments, "--seconds", "20", "--json", str(out), "--record", str(record)])
    assert code == 0
    (row,) = json.loads(out.read_text())
    assert set(row) == {
        "instance",
        "ratio",
        "order",
        "feasible",
        "extra_cost_percent",
        "bound_percent",
        "planning_seconds",
        "sequence",
    }
    # a again before its second reader: 2 of 20 seconds.
    assert row["sequence"] == [7, 3, 5, 9, 7, 2]
    assert row["extra_cost_percent"] == pytest.approx(10)
    assert row["bound_percent"] == pytest.approx(10, rel=1e-5)
    found = instances.verify(data, 0.75, order, row["sequence"])
    assert (found.budget, found.peak) == (19, 19)
    kept = json.loads(record.read_text())
    assert str(tmp_path) not in record.read_text()
    assert kept["results"][0]["sequence"] is None
    assert "--ratio 0.75" in kept["command"]


@pytest.mark.parametrize(
    ("sequence", "order", "message"),
    [
        ([7, 3, 5, 9], "fixed", "never computed"),
        ([7, 3, 5, 9, 2, 4], "fixed", "unknown"),
        ([7, 3, 9, 5, 2], "free", "before it is computed"),
        ([7, 3, 5, 9, 2], "fixed", "over the budget"),
    ],
)
def test_false_claims_are_refused(
    instances: ModuleType, sequence: list[int], order: str, message: str
) -> None:
    with pytest.raises(instances.VerificationError, match=message):
        instances.verify(skip_graph(), 0.75, order, sequence)


def test_another_order_is_not_the_fixed_one(instances: ModuleType) -> None:
    data = skip_graph()
    data["nodes"].append({"id": 8, "name": "8", "backward": False, "cost_cpu": 1, "cost_ram": 1})
    data["links"].append({"source": 8, "target": 2})
    order = instances.input_order(data)
    swapped = [order[1], order[0], *order[2:]]
    instances.verify(data, 1.0, "fixed", order)
    with pytest.raises(instances.VerificationError, match="input order"):
        instances.verify(data, 1.0, "fixed", swapped)


def test_a_name_that_is_not_there_is_explained(bench: ModuleType) -> None:
    with pytest.raises(ValueError, match="no instance nothing"):
        bench.chosen_files(ROOT / "tests", ["nothing"])


def test_generated_transformers(instances: ModuleType) -> None:
    graph = load_benchmark("nets.generated").transformer(24)
    assert len(graph.ids) == 1306
    assert all(max(reads, default=-1) < node for node, reads in enumerate(graph.predecessors))
    found = instances.verify_instance(graph, 1.0, list(graph.ids))
    assert found.peak == found.budget
    assert found.extra_cost_percent == 0
