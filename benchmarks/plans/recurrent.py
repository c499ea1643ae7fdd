"""Recurrent layers: what ``grad --scan-recompute`` stores, and what it costs in time.

One ONNX LSTM or GRU under a scalar loss, differentiated by its weights with each setting. Peaks are
predicted and measured by ``memplan validate`` against the graph that makes nothing again; seconds
are medians of runs in turn, one setting after the other, in a tuned session on the CPU.

    python -m benchmarks.plans.recurrent --runs 21 --json benchmarks/results/recurrent.json
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import memplan
from benchmarks.record import write_record
from memplan.api.analysis import analyze
from memplan.api.validate.validating import ValidateOptions, validate

SETTINGS = ("none", "auto", "*", "all")
_GATES = {"LSTM": 4, "GRU": 3}


@dataclass(frozen=True, slots=True)
class Case:
    """A layer; ``width`` are its inputs per step."""

    op: str
    steps: int
    batch: int
    width: int
    hidden: int


@dataclass(frozen=True, slots=True)
class Row:
    """One setting of one layer; ``seconds`` is a median, ``slowdown_percent`` that of the medians
    against ``none``."""

    op: str
    steps: int
    batch: int
    hidden: int
    scan_recompute: str
    stored_bytes_per_step: int | None
    stored_bytes: int | None
    predicted_peak_bytes: int
    measured_peak_bytes: int
    equality: str
    seconds: float
    slowdown_percent: float


def forward_graph(case: Case) -> onnx.ModelProto:
    """The layer, and the sum of its outputs times a target as the loss."""
    random = np.random.default_rng(0)
    rows = _GATES[case.op] * case.hidden

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        array = random.standard_normal(shape) / np.sqrt(shape[-1])
        return numpy_helper.from_array(array.astype(np.float32), name)

    nodes = [
        helper.make_node(case.op, ["x", "W", "R", "B"], ["y"], name="rnn", hidden_size=case.hidden),
        helper.make_node("Mul", ["y", "target"], ["product"], name="product"),
        helper.make_node("ReduceSum", ["product"], ["loss"], name="sum", keepdims=0),
    ]
    inputs = {
        "x": (case.steps, case.batch, case.width),
        "target": (case.steps, 1, case.batch, case.hidden),
    }
    graph = helper.make_graph(
        nodes,
        case.op,
        [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, ())],
        [
            weight("W", 1, rows, case.width),
            weight("R", 1, rows, case.hidden),
            weight("B", 1, 2 * rows),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def measure(case: Case, runs: int, folder: Path) -> list[Row]:
    """All settings of one layer."""
    forward = forward_graph(case)
    paths: dict[str, Path] = {}
    stored: dict[str, Any] = {}
    for number, setting in enumerate(SETTINGS):
        model = memplan.gradients(forward, "loss", ["W", "R", "B"], scan_recompute=setting)
        (stored[setting],) = analyze(model).recurrent
        paths[setting] = folder / f"{case.op}{number}.onnx"
        onnx.save(model, paths[setting])
    seconds = _seconds(list(paths.values()), case, runs)
    rows = []
    for setting, taken in zip(SETTINGS, seconds, strict=True):
        found = validate(paths["none"], paths[setting], ValidateOptions(provider="cpu", runs=1))
        predicted = found.rewritten.predicted_peak_bytes
        rows.append(
            Row(
                case.op,
                case.steps,
                case.batch,
                case.hidden,
                setting,
                stored[setting].step_bytes,
                stored[setting].steps * stored[setting].step_bytes,
                predicted or 0,
                found.rewritten.measured_peak_bytes,
                found.equality,
                taken,
                100 * (taken / seconds[0] - 1),
            )
        )
    return rows


def _seconds(paths: list[Path], case: Case, runs: int) -> list[float]:
    """Median seconds of each file, run in turn so that a busy machine hits all of them."""
    random = np.random.default_rng(1)
    feeds = {
        "x": random.standard_normal((case.steps, case.batch, case.width)).astype(np.float32),
        "target": random.standard_normal((case.steps, 1, case.batch, case.hidden)).astype(
            np.float32
        ),
    }
    sessions = [memplan.load(path) for path in paths]
    taken: list[list[float]] = [[] for _ in paths]
    for turn in range(runs + 2):  # two warm up
        for session, times in zip(sessions, taken, strict=True):
            begin = time.perf_counter()
            session.run(None, feeds)
            if turn >= 2:
                times.append(time.perf_counter() - begin)
    return [statistics.median(times) for times in taken]


def main() -> int:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--op", action="append", choices=sorted(_GATES))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--runs", type=int, default=21)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for op in options.op or sorted(_GATES, reverse=True):
            case = Case(op, options.steps, options.batch, options.width, options.hidden)
            for row in measure(case, options.runs, Path(folder)):
                print(row, flush=True)
                rows.append(row)
    if options.json is not None:
        command = shlex.join(["python", "-m", "benchmarks.plans.recurrent", *sys.argv[1:]])
        write_record(options.json, command, [asdict(row) for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
