"""The GPU benchmark runs to its end without a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from helpers.models import SAMPLES, load_benchmark
from helpers.training_steps import saved_step, symbolic_batch
from memplan.solver.search.warm_up import warm_up


@pytest.mark.slow
def test_it_ends_on_the_cpu_and_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm_up()
    bench = load_benchmark("gpu.__main__")
    target = tmp_path / "gpu.json"
    graph = saved_step(symbolic_batch, tmp_path)
    arguments = [
        "gpu",
        "--graph",
        f"gpt2={graph}",
        "--net",
        "gpt2",
        "--batch",
        "512",
        "--memory",
        "2MB",
        "--share",
        "60%",
        "--provider",
        "cpu",
        "--runs",
        "1",
        "--size",
        "tiny",
        "--plan-seconds",
        "0.5",
        "--part",
        "sessions",
        "--part",
        "batch",
        "--json",
        str(target),
    ]
    monkeypatch.setattr(sys, "argv", arguments)
    assert bench.main() == 0
    record = json.loads(target.read_text())
    rows = record["results"]
    assert [(r["kind"], r.get("session"), r.get("share")) for r in rows] == [
        ("session", "tuned", "original"),
        ("session", "tuned", "60%"),
        ("session", "default", "original"),
        ("session", "default", "60%"),
        ("batch", None, None),
    ]
    for row in rows[:2]:
        assert row["measured_peak_bytes"] == row["predicted_peak_bytes"]
        assert row["counted_peak_bytes"] is None  # nothing counts on the CPU
    assert rows[1]["within_budget"]
    assert rows[1]["recomputed_nodes"] > 0
    assert rows[3]["within_budget"]
    batch = rows[4]
    assert batch["batch_with"] > batch["batch_without"] >= 1
    assert batch["with"]["measured_peak_bytes"] <= batch["budget_bytes"]
    assert str(tmp_path) not in record["command"]
    # A second call finds everything there.
    monkeypatch.setattr(sys, "argv", arguments)
    assert bench.main() == 0
    assert json.loads(target.read_text())["results"] == rows


def test_without_torch_the_peers_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = load_benchmark("gpu.peers")
    monkeypatch.setattr(peers, "find_spec", lambda name: None)

    class Bench:
        record: dict[str, list[str]] = {"notes": []}  # noqa: RUF012

    assert list(peers.peer_rows(Bench(), {"gpt2": 1})) == []
    assert Bench.record["notes"] == ["torch is not installed: no peers"]


def test_time_that_is_over_leaves_rows_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = load_benchmark("gpu.__main__")
    target = tmp_path / "gpu.json"
    arguments = ["gpu", "--graph", f"gpt2={SAMPLES / 'gpt_dynamic.onnx'}", "--net", "gpt2"]
    arguments += ["--batch", "1", "--seconds", "0", "--part", "sessions", "--provider", "cpu"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--json", str(target)])
    assert bench.main() == 0
    record = json.loads(target.read_text())
    assert record["results"] == []
    assert len(record["left_out"]) == 8
