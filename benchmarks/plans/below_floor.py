"""What free passes take off the peak and the floor, move by move; and whether that holds.

Every graph is simulated as it lies in the file, in a tuned session on the CPU, behind each pass of
``rewrite``, without a budget: nothing is recomputed. With ``--run`` the result is also written and
validated: predicted and measured bytes, equality of all outputs. Both files then run in turn in one
process, on one thread: the quickest run of each counts, as the machine may do other work. Exit code
1 where one that ran is not equal or not as predicted.

    python -m benchmarks.plans.below_floor GRAPH... --shared --run \\
        --json benchmarks/results/free_bytes.json
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnxruntime

import memplan
from benchmarks.models import DIMS, shared_models
from benchmarks.record import arguments, run
from memplan.ops.cost import DEVICES, node_costs
from memplan.passes.manager import NAMES, make_passes, run_passes
from memplan.passes.order import Order
from memplan.runtime.inputs import synthesize
from memplan.simulate.floor import structural_floor
from memplan.simulate.opened import OpenModel, open_model
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import Timeline, simulate
from memplan.units import parse_size

FOLDERS = ("runnable", "full_scale")
ROUNDS = 12  # of the search for an order: the record does not depend on the machine
MOST_BYTES = 160 << 20  # of a graph that is run
LEAST_SECONDS, MOST_RUNS = 6.0, 1000  # of small steps the quickest is found late


@dataclass(frozen=True, slots=True)
class Move:
    """The graph behind a pass. Peak and floor are with workspace; ``extra_seconds_percent``: more
    than the original takes, estimated (roofline of a CPU)."""

    name: str
    nodes: int
    peak_bytes: int
    floor_bytes: int
    extra_seconds_percent: float
    note: str


@dataclass(frozen=True, slots=True)
class Ran:
    """What ``memplan validate`` found. ``time_ratio``: the quickest step over the original's."""

    equality: str
    proved: bool
    as_predicted: bool
    measured_peak_bytes: int
    original_peak_bytes: int
    time_ratio: float


@dataclass(frozen=True, slots=True)
class Row:
    """A graph: the moves from the file to what all passes leave; ``ran``: None if it was not."""

    graph: str
    moves: tuple[Move, ...]
    pass_seconds: float
    ran: Ran | None = None


def moves_of(path: Path) -> tuple[tuple[Move, ...], float]:
    """Every pass on the graph in ``path``, and the seconds that they took."""
    model = open_model(path, DIMS.get(path.stem, {}))
    first = simulate(model.graph, session_kind("tuned"))
    begin = time.perf_counter()
    steps = run_passes(make_passes(NAMES, order=Order(ROUNDS)), model, first)
    seconds = time.perf_counter() - begin
    rows = [("original", model, first, "")]
    rows += [(step.name, step.model, step.timeline, step.note) for step in steps]
    whole = _seconds(first)
    return tuple(_move(*row, whole) for row in rows), seconds


def _move(name: str, model: OpenModel, timeline: Timeline, note: str, whole: float) -> Move:
    floor = structural_floor(model.graph, timeline).with_workspace + timeline.resident_bytes
    extra = 100 * (_seconds(timeline) / whole - 1) if whole else 0.0
    peak = timeline.peak_with_workspace_bytes
    return Move(name, len(model.graph.nodes), peak, floor, round(extra, 3), note)


def _seconds(timeline: Timeline) -> float:
    return sum(node_costs(timeline.graph, DEVICES["cpu"], "cpu"))


def ran(path: Path, runs: int) -> Ran:
    """Rewrite without a budget and validate what was written."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "free.onnx"
        options = memplan.RewriteOptions(parse_size("100%"), optimize="none", effort=ROUNDS)
        memplan.rewrite(path, options, target, dims=dict(DIMS.get(path.stem, {})))
        found = memplan.validate(path, target, memplan.ValidateOptions(runs=0, plain=False))
        before, after = step_times(path, target, runs)
        ratio = min(after) / min(before)
    return Ran(
        equality=found.equality,
        proved=found.proved,
        as_predicted=found.rewritten.as_predicted and found.original.as_predicted,
        measured_peak_bytes=found.rewritten.measured_peak_bytes,
        original_peak_bytes=found.original.measured_peak_bytes,
        time_ratio=round(ratio, 3),
    )


def step_times(path: Path, rewritten: Path, runs: int) -> tuple[list[float], list[float]]:
    """Seconds of at least ``runs`` steps of each, in turn and for seconds, in tuned sessions."""
    feeds = synthesize(open_model(path, DIMS.get(path.stem, {})).graph)
    sessions = []
    for file in (path, rewritten):
        options = memplan.session_options(file)
        options.intra_op_num_threads = 1
        sessions.append(onnxruntime.InferenceSession(file, options))
    taken: tuple[list[float], list[float]] = [], []
    start, done = time.perf_counter(), 0
    while done <= runs or (done < MOST_RUNS and time.perf_counter() - start < LEAST_SECONDS):
        done += 1
        for place in (0, 1) if done % 2 else (1, 0):
            begin = time.perf_counter()
            sessions[place].run(None, feeds)
            taken[place].append(time.perf_counter() - begin)
    return taken


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Every graph; with ``--run``, the small ones are also run."""
    for path in [*options.models, *(shared_models(FOLDERS) if options.shared else ())]:
        moves, seconds = moves_of(path)
        run_it = options.run and moves[0].peak_bytes <= MOST_BYTES
        yield Row(path.stem, moves, round(seconds, 2), ran(path, options.runs) if run_it else None)


if __name__ == "__main__":
    parser = arguments("plans.below_floor", __doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--shared", action="store_true", help="the samples and $MEMPLAN_SHARED")
    parser.add_argument("--run", action="store_true", help="also run the small ones")
    parser.add_argument("--runs", type=int, default=9, help="timed runs of each")
    tried = [row["ran"] for row in run(parser, rows) if row["ran"]]
    sys.exit(any(row["equality"] != "bitwise" or not row["as_predicted"] for row in tried))
