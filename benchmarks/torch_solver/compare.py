"""Peaks and times under PyTorch's knapsack solvers, and under memplan at the peaks they reached.

``python -m benchmarks.torch_solver.compare --backend aot_eager --out results/torch_solver.json``.
Every point is a process of its own (:mod:`benchmarks.torch_solver.point`), two at a time. Needs
``.[torch]``, a C++ compiler for Inductor, scipy for the solver ``ilp``, and glibc.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.nets.timed import BESIDE_SOLVERS
from benchmarks.record import write_record

BUDGETS = (0.05, 0.15, 0.3, 0.5, 0.8)
TIME_LIMIT = 3.0
_LIMIT = 900
_NEAR = 0.01  # stock peaks this close are one point for memplan


def main() -> None:
    """Measure all points that are asked for; every finished one is written at once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="aot_eager", choices=("aot_eager", "inductor"))
    parser.add_argument("--solvers", default="dp,greedy,ilp")
    parser.add_argument("--models", default=",".join(BESIDE_SOLVERS))
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    command = f"python -m benchmarks.torch_solver.compare {' '.join(sys.argv[1:])}"
    rows: list[dict[str, Any]] = []
    models = asked.models.split(",")
    stock = list(_stock(asked.backend, asked.solvers.split(","), models))
    _measure(stock, rows, asked.out, command)
    _measure(list(_at_their_peaks(rows, asked.backend, models)), rows, asked.out, command)


def _stock(
    backend: str, solvers: Sequence[str], models: Sequence[str]
) -> Iterator[dict[str, object]]:
    for model in models:
        yield {"model": model, "backend": backend, "solver": "none", "budget": 1.0}
    for solver in solvers:
        for budget in BUDGETS:
            for model in models:
                yield {"model": model, "backend": backend, "solver": solver, "budget": budget}


def _at_their_peaks(
    rows: Sequence[dict[str, Any]], backend: str, models: Sequence[str]
) -> Iterator[dict[str, object]]:
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


def _measure(
    points: Sequence[dict[str, object]], rows: list[dict[str, Any]], out: Path, command: str
) -> None:
    with ThreadPoolExecutor(max_workers=2) as pool:
        for found in pool.map(_point, points):
            if found is not None:
                rows.append(found)
                write_record(out, command, rows)


def _point(asked: dict[str, object]) -> dict[str, Any] | None:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "65536",
    }
    command = [sys.executable, "-m", "benchmarks.torch_solver.point", json.dumps(asked)]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return {**asked, "failed": f"not done in {_LIMIT} s"}
    if done.returncode:
        last = done.stderr.strip().splitlines()
        why = next((line for line in last if "Error:" in line), last[-1] if last else "")
        return {**asked, "failed": why[:200]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
