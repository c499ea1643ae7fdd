"""Every benchmark that needs no PyTorch runs once on a small input; what it refuses, it refuses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from helpers.models import SAMPLES, load_benchmark
from helpers.networks import batches, training_step
from memplan.planning.encode_problem import within
from memplan.solver.search.warm_up import warm_up
from memplan.solver.strategies.builtin import parse_strategy
from memplan.solver.strategy import Outcome


def results(path: Path) -> list[dict[str, Any]]:
    """The rows of a record, which names no folder."""
    text = path.read_text()
    assert str(path.parent) not in text
    rows: list[dict[str, Any]] = json.loads(text)["results"]
    return rows


# --- Plans ----------------------------------------------------------------------------------------


def test_training_graphs(tmp_path: Path) -> None:
    record = tmp_path / "rows.json"
    words = ["--models", str(SAMPLES / "unet.onnx"), "--seconds", "5", "--json", str(record)]
    words += ["--budget", "80%", "--budget", "1%"]  # one is below the floor
    load_benchmark("plans.training_graphs").main(
        [*words, "--strategy", "none", "--strategy", "min-cut"]
    )
    none, cut = results(record)
    assert (none["fits"], none["peak_bytes"]) == (False, none["original_peak_bytes"])
    assert cut["fits"]
    assert cut["floor_bytes"] <= cut["peak_bytes"] <= cut["budget_bytes"]
    assert cut["extra_cost_percent"] > 0


@pytest.mark.parametrize("lie", [{"peak": 1}, {"feasible": False}, {"extra_cost": 0.0}])
def test_a_false_claim_is_refused(lie: dict[str, object]) -> None:
    bench = load_benchmark("plans.training_graphs")
    loaded = bench.load(SAMPLES / "unet.onnx", "h200")
    problem = within(loaded.prepared.problem, loaded.peak * 8 // 10)
    decision = parse_strategy("segments").solve(problem, 5.0).decision
    with pytest.raises(bench.VerificationError, match="segments claims"):
        bench.verify(loaded, problem, Outcome(replace(decision, **lie)), "segments")


SKIP = {
    "graph": {},
    "nodes": [
        {"id": k, "cost_cpu": cost, "cost_ram": size}
        for k, cost, size in ((7, 2, 10), (3, 5, 1), (5, 5, 8), (9, 5, 8), (2, 3, 1))
    ],
    "links": [{"source": a, "target": b} for a, b in ((7, 3), (3, 5), (5, 9), (9, 2), (7, 2))],
}
"""7 (large, cheap) is read at once and at the end; 3, 5 and 9 need room in between."""
LAYERED = {
    "graph": {"order": [7, 3, 5, 9, 2]},
    "nodes": [
        {"name": node["id"], "duration": node["cost_cpu"], "out_cost": node["cost_ram"]}
        for node in reversed(SKIP["nodes"])  # type: ignore[call-overload]
    ],
    "links": [{"0": link["source"], "1": link["target"]} for link in SKIP["links"]],  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("data", [SKIP, LAYERED], ids=["checkmate", "layered"])
@pytest.mark.parametrize("order", ["fixed", "free"])
def test_public_graphs(data: dict[str, Any], order: str, tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(json.dumps(data))
    record = tmp_path / "out" / "record.json"
    record.parent.mkdir()
    words = [
        "--instances",
        str(tmp_path / "small.json"),
        "--ratio",
        "0.75",
        "--order",
        order,
        "--seconds",
        "20",
    ]
    load_benchmark("plans.public_graphs").main(
        [*words, "--order", order, "--sequences", "--json", str(record)]
    )
    (row,) = results(record)
    # 7 again before its second reader: 2 of 20 seconds.
    assert row["sequence"] == [7, 3, 5, 9, 7, 2]
    assert row["extra_cost_percent"] == pytest.approx(10)
    assert row["bound_percent"] == pytest.approx(10, rel=1e-5)


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        ([7, 3, 5, 9], "never computed"),
        ([7, 3, 5, 9, 2, 4], "unknown"),
        ([7, 3, 9, 5, 2], "before it is computed"),
        ([7, 3, 5, 9, 2], "over the budget"),
    ],
)
def test_plans_that_do_not_hold_are_refused(sequence: list[int], message: str) -> None:
    instances = load_benchmark("plans.instances")
    with pytest.raises(instances.VerificationError, match=message):
        instances.verify(instances.instance_of("skip", SKIP), 0.75, sequence, fixed=False)


# --- Steps ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_worker_steps_when_it_is_told_to(tmp_path: Path) -> None:
    bench = load_benchmark("steps.pytorch")
    step = training_step("mlp")
    files = [tmp_path / name for name in ("step.onnx", "batch.npz")]
    onnx.save(step, files[0])
    np.savez(files[1], **batches(step, 1)[0])
    with bench.Worker("m", "memplan", *map(str, files)) as worker:
        for _ in range(3):
            worker.steps(1)
        row = worker.finish()
    assert len(row["seconds_by_round"]) == len(row["losses"]) == 3
    assert row["losses"][-1] < row["losses"][0]
    assert row["growth_bytes"] >= 0


# --- Networks -------------------------------------------------------------------------------------

PUBLISHED = {
    "vit_b16_bs32_224": 86_567_656,
    "resnet50_bs32_224": 25_557_032,
    "gpt2_small_bs8_seq1024": 124_439_808,
    "bert_base_bs16_seq512": 109_514_298,
}
"""Parameters of torchvision's vit_b_16 and resnet50, of Hugging Face's GPT-2 and of BERT base with
its head."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_networks_have_the_published_parameters_and_the_batch_of_their_names(name: str) -> None:
    torch: Any = pytest.importorskip("torch")
    net = load_benchmark("nets").FULL[name]
    with torch.device("meta"):
        assert sum(p.numel() for p in net.make().parameters()) == PUBLISHED[name]
        inputs = net.batch()[0]
    count, size = name.split("_bs")[1].split("_")
    assert (len(inputs), inputs.shape[-1]) == (int(count), int(size.removeprefix("seq")))


@pytest.mark.slow
def test_the_gpu_benchmark_ends_on_the_cpu_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    warm_up()
    record = tmp_path / "gpu.json"
    words = ["--graphs", str(tmp_path), "--net", "gpt2", "--size", "tiny", "--provider", "cpu"]
    words += ["--memory", "3MB", "--share", "60%", "--runs", "1", "--plan-seconds", "0.5"]
    words += ["--part", "session", "--json", str(record)]
    bench = load_benchmark("gpu")
    assert len(bench.main([*words, "--seconds", "0"])) == 1  # the device alone
    bench.main(words)
    rows = results(record)
    assert [(r["kind"], r.get("session"), r.get("share")) for r in rows[1:]] == [
        ("session", "tuned", "original"),
        ("session", "tuned", "60%"),
        ("session", "default", "original"),
        ("session", "default", "60%"),
    ]
    assert rows[1]["measured_peak_bytes"] == rows[1]["predicted_peak_bytes"]
    assert rows[1]["counted_peak_bytes"] is None  # nothing counts on the CPU
    assert rows[2]["within_budget"]
    assert rows[2]["recomputed_nodes"] > 0
    assert len(bench.main(words)) == 1  # a second call finds everything there
    assert results(record)[:-1] == rows[1:]
