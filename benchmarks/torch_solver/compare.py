"""Peaks and times under PyTorch's knapsack solvers, and under memplan at the peaks they reached.

``python -m benchmarks.torch_solver.compare --backend aot_eager --json results/torch_solver.json``.
Every point is a process of its own (:mod:`benchmarks.torch_solver.point`), two at a time. Needs
``.[torch]``, a C++ compiler for Inductor, scipy for the solver ``ilp``, and glibc.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.nets import BESIDE_SOLVERS
from benchmarks.record import Row, arguments, in_process, run

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
    told = in_process("torch_solver.point.measured", json.dumps(asked), seconds=_LIMIT, **_ALONE)
    return asked | told


if __name__ == "__main__":
    parser = arguments("torch_solver.compare", __doc__)
    parser.add_argument("--backend", default="aot_eager", choices=("aot_eager", "inductor"))
    parser.add_argument("--solvers", default="dp,greedy,ilp")
    parser.add_argument("--models", default=",".join(BESIDE_SOLVERS))
    run(parser, rows)
