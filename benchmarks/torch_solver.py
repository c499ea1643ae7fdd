"""Peaks and times of ``torch.compile`` under PyTorch's knapsack solvers, and under
``memplan.torch_solver`` at the peaks they reached.

    python -m benchmarks.torch_solver --backend aot_eager --json results/torch_solver.json

Every point is a process of its own, two at a time. ``peak_bytes``: resident bytes (weights,
buffers, batch) and PyTorch's own allocations from the beginning of a step, at their highest.
``grown_bytes``: what the process's resident set grows by in a step, of pages that the allocator
gives back at once (glibc, ``MALLOC_MMAP_THRESHOLD_``). Needs ``.[torch]``, a C++ compiler for
Inductor, scipy for the solver ``ilp``, and glibc.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import memplan
from benchmarks.nets import BESIDE_SOLVERS, make
from benchmarks.record import Row, arguments, in_process, run
from memplan.runtime.resident_set import peak_rss, reset_peak_rss

STEPS = 9
BUDGETS = (0.05, 0.15, 0.3, 0.5, 0.8)
TIME_LIMIT = 3.0
_LIMIT = 900
_ALONE = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
}
_NEAR = 0.01  # stock peaks this close are one point for memplan


def _stock(backend: str, solvers: Sequence[str], models: Sequence[str]) -> Iterator[Row]:
    for model in models:
        yield {"model": model, "backend": backend, "solver": "none", "budget": 1.0}
    for solver in solvers:
        for budget in BUDGETS:
            for model in models:
                yield {"model": model, "backend": backend, "solver": solver, "budget": budget}


def _at_their_peaks(rows: Sequence[Row], backend: str, models: Sequence[str]) -> Iterator[Row]:
    """memplan with the measured peak of every point as its budget, and at its lowest."""
    ours = {"backend": backend, "solver": "memplan", "time_limit": TIME_LIMIT}
    for model in models:
        yield {"model": model, "budget": "min", **ours}
        found = sorted(r["peak_bytes"] for r in rows if r["model"] == model and "peak_bytes" in r)
        last = 0
        for peak in found:
            if peak > last * (1 + _NEAR):
                yield {"model": model, "budget": peak, **ours}
                last = peak


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """All points that are asked for, stock ones first."""
    models = options.models.split(",")
    found: list[Row] = []
    with ThreadPoolExecutor(max_workers=2) as pool:
        for row in pool.map(_point, _stock(options.backend, options.solvers.split(","), models)):
            found.append(row)
            yield row
        yield from pool.map(_point, list(_at_their_peaks(found, options.backend, models)))


def _point(asked: Row) -> Row:
    told = in_process("torch_solver.measured", json.dumps(asked), seconds=_LIMIT, **_ALONE)
    return asked | told


# --- One point, in its process --------------------------------------------------------------------


def measured(words: str) -> Row:
    """Measure what an object of JSON asks for."""
    asked = json.loads(words)
    torch.set_num_threads(1)
    model, batch = make(asked["model"])
    solver = None
    if asked["solver"] == "memplan":
        solver = memplan.torch_solver(
            asked["budget"], backend=asked["backend"], time_limit=asked["time_limit"]
        )
        run = torch.compile(model, backend=solver.backend)
    else:
        from torch._functorch import config

        config.activation_memory_budget = asked["budget"]
        if asked["solver"] != "none":
            config.activation_memory_budget_solver = asked["solver"]
        backend = asked["backend"]
        if asked["solver"] == "none" and backend == "aot_eager":
            backend = "aot_eager_default_partitioner"
        run = torch.compile(model, backend=backend)
    found: Row = dict(asked)
    begin = time.perf_counter()
    got = _gradients(run, model, batch)
    found["compile_seconds"] = round(time.perf_counter() - begin, 2)
    model.zero_grad(set_to_none=True)
    resident = sum(each.nbytes for each in (*model.parameters(), *model.buffers(), *batch))
    found["peak_bytes"] = resident + _allocated(run, model, batch)
    found["grown_bytes"] = _grown(run, model, batch)
    found["seconds"] = _seconds(run, model, batch)
    other, _ = make(asked["model"])
    expected = _gradients(other, other, batch)
    found["bitwise"] = all(map(torch.equal, got, expected))
    if solver is not None:
        report = solver.report.as_json()
        for key in ("predicted_peak_bytes", "baseline_peak_bytes", "floor_bytes"):
            found[key] = report[key]
        for key in ("extra_cost_fraction", "bound_fraction", "planning_seconds"):
            found[key] = round(report[key], 5)
        found["bound_kind"] = report["bound_kind"]
    return found


def _gradients(run: Callable[..., Any], model: Any, batch: Any) -> list[torch.Tensor]:
    torch.manual_seed(5)
    loss = run(*batch)
    loss.backward()
    return [loss.detach(), *(each.grad.clone() for each in model.parameters())]


def _step(run: Callable[..., Any], model: Any, batch: Any) -> None:
    run(*batch).backward()
    model.zero_grad(set_to_none=True)


def _allocated(run: Callable[..., Any], model: Any, batch: Any) -> int:
    """Bytes beside those at the beginning, by PyTorch's allocator."""
    _step(run, model, batch)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        _step(run, model, batch)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        found.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    told = sorted(
        (each for each in events if each.get("name") == "[memory]"), key=lambda each: each["ts"]
    )
    begin = told[0]["args"]["Total Allocated"] - told[0]["args"]["Bytes"]
    return int(max(each["args"]["Total Allocated"] for each in told) - begin)


def _grown(run: Callable[..., Any], model: Any, batch: Any) -> int:
    """Growth of the resident set, from the high-water mark that Linux keeps."""
    before = reset_peak_rss()
    _step(run, model, batch)
    return peak_rss() - before


def _seconds(run: Callable[..., Any], model: Any, batch: Any) -> float:
    """Median CPU seconds of a step, on one thread: other processes disturb them little."""
    taken = []
    for _ in range(STEPS):
        begin = time.process_time()
        _step(run, model, batch)
        taken.append(time.process_time() - begin)
    return round(statistics.median(taken), 5)


if __name__ == "__main__":
    parser = arguments("torch_solver", __doc__)
    parser.add_argument("--backend", default="aot_eager", choices=("aot_eager", "inductor"))
    parser.add_argument("--solvers", default="dp,greedy,ilp")
    parser.add_argument("--models", default=",".join(BESIDE_SOLVERS))
    run(parser, rows)
