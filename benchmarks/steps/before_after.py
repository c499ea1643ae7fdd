"""Steps of two versions of memplan, or of two settings: how long each takes, and what it launches.

``BEFORE`` and ``AFTER`` are folders with files of the same names, one per network, each written by
``memplan capture`` (or ``rewrite``) of one version. A file is trained in a process of its own,
before and after in turn, so that what else the machine does falls on both. Seconds of the processor
stand beside those of the clock; with one thread they say more on a machine that is not idle. The
counts are of the graph: nodes; *launches*, that is nodes that are not views; bytes that these read
and write; and the roofline of an H200 (``memplan/ops/cost.py``), an estimate.

    python -m benchmarks.steps.before_after BEFORE AFTER [--rounds 5] [--steps 8] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import write_record

WARM = 2
"""Steps of each process that are not counted."""
SIDES, CLOCKS = ("before", "after"), ("seconds", "cpu_seconds")


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a line per network, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="of each process, with the first two")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", action="append")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.child:
        print(json.dumps(trained(asked.child, asked.steps, asked.threads)))
        return 0
    names = sorted(path.stem for path in asked.before.glob("*.onnx"))
    rows = []
    for name in names:
        if asked.only and name not in asked.only:
            continue
        files = [folder / f"{name}.onnx" for folder in (asked.before, asked.after)]
        rows.append({"network": name, "threads": asked.threads, **compared(files, asked)})
        print(json.dumps(rows[-1]), flush=True)
        if asked.json:
            command = "python -m benchmarks.steps.before_after BEFORE AFTER --threads 1 --json FILE"
            write_record(asked.json, command, kept(asked.json, rows))
    return 0


def kept(record: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, behind those of other networks that the record has already."""
    there = json.loads(record.read_text())["results"] if record.exists() else []
    made = {row["network"] for row in rows}
    return [*(row for row in there if row["network"] not in made), *rows]


def compared(files: Sequence[Path], asked: argparse.Namespace) -> dict[str, Any]:
    """Both sides of one network, and the median over rounds of after / before."""
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for _ in range(asked.rounds):
        for side, file in zip(SIDES, files, strict=True):
            runs[side].append(in_child(file, asked))
    row: dict[str, Any] = {}
    for side, file in zip(SIDES, files, strict=True):
        row[side] = counted(file)
        for clock in CLOCKS:
            medians = [statistics.median(run[clock]) for run in runs[side]]
            row[side][clock] = round(statistics.median(medians), 4)
            row[side][f"{clock}_of_rounds"] = [round(seconds, 4) for seconds in medians]
            row[side][f"{clock}_best"] = round(min(min(run[clock]) for run in runs[side]), 4)
        row[side]["last_loss"] = runs[side][0]["last_loss"]
    for clock in CLOCKS:
        pairs = zip(*(row[side][f"{clock}_of_rounds"] for side in SIDES), strict=True)
        row[f"{clock}_after_over_before"] = round(statistics.median(b / a for a, b in pairs), 4)
    return row


def in_child(file: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Train one file in a process of its own."""
    settings = ["--steps", str(asked.steps), "--threads", str(asked.threads)]
    command = [sys.executable, "-m", "benchmarks.steps.before_after", ".", ".", *settings]
    found = subprocess.run(
        [*command, "--child", str(file)], capture_output=True, text=True, check=True
    )
    result: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return result


def trained(file: Path, steps: int, threads: int) -> dict[str, Any]:
    """Seconds of each step but the first two, on the clock and of the processor; the last loss."""
    import memplan
    from memplan.training.synthetic import synthetic_batches

    trainer = memplan.Trainer(file, threads=threads, seed=0)
    batches = synthetic_batches(trainer.file, {}, seed=0)
    seconds, processor, loss = [], [], 0.0
    for number in range(steps):
        batch = {name: array[number % len(array)] for name, array in batches.items()}
        begin = time.process_time()
        loss = trainer.step(batch)
        processor.append(time.process_time() - begin)
        seconds.append(trainer.seconds)
    return {"seconds": seconds[WARM:], "cpu_seconds": processor[WARM:], "last_loss": loss}


def counted(file: Path) -> dict[str, Any]:
    """What the graph asks of a GPU, whatever runs it."""
    from memplan.ops.cost import DEVICES, node_work, total_work
    from memplan.simulate.opened import open_model

    graph = open_model(file).graph
    works = node_work(graph, DEVICES["h200"], "cuda")
    whole = total_work(works)
    launched = Counter(n.op for n, work in zip(graph.nodes, works, strict=True) if work.launches)
    return {
        "nodes": len(graph.nodes),
        "launches": whole.launches,
        "bytes_moved": whole.moved_bytes,
        "h200_seconds_estimated": round(whole.seconds, 6),
        "launches_by_operator": dict(launched.most_common(8)),
    }


if __name__ == "__main__":
    raise SystemExit(main())
