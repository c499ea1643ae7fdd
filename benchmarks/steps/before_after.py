"""Steps of two versions of memplan, or of two settings: how long each takes, and what it launches.

``BEFORE`` and ``AFTER`` are folders with files of the same names, one per network, each written by
``memplan capture`` (or ``rewrite``) of one version. Both are trained in one process, a step of one
and a step of the other in turn, so that what else the machine does falls on both; seconds are those
of the processor, which one thread needs whatever else runs. The counts are of the graph: nodes;
*launches*, that is nodes that are not views; bytes that these read and write; and the roofline of
an H200 (``memplan/ops/cost.py``), an estimate.

    python -m benchmarks.steps.before_after BEFORE AFTER [--steps 12] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import write_record

WARM = 2
"""Steps of each that are not counted."""
SIDES = ("before", "after")


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a line per network, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", action="append")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    names = sorted(path.stem for path in asked.before.glob("*.onnx"))
    rows = []
    for name in names:
        if asked.only and name not in asked.only:
            continue
        files = [folder / f"{name}.onnx" for folder in (asked.before, asked.after)]
        rows.append({"network": name, "threads": asked.threads, **compared(files, asked)})
        print(json.dumps(rows[-1]), flush=True)
        if asked.json:
            command = "python -m benchmarks.steps.before_after BEFORE AFTER --json FILE"
            write_record(asked.json, command, kept(asked.json, rows))
    return 0


def kept(record: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, behind those of other networks that the record has already."""
    there = json.loads(record.read_text())["results"] if record.exists() else []
    made = {row["network"] for row in rows}
    return [*(row for row in there if row["network"] not in made), *rows]


def compared(files: Sequence[Path], asked: argparse.Namespace) -> dict[str, Any]:
    """Both sides of one network, and the median over steps of after / before."""
    import memplan
    from memplan.training.synthetic import synthetic_batches

    trainers = [memplan.Trainer(file, threads=asked.threads, seed=0) for file in files]
    batches = synthetic_batches(trainers[0].file, seed=0)
    seconds: list[list[float]] = [[] for _ in files]
    for number in range(WARM + asked.steps):
        batch = {name: array[number % len(array)] for name, array in batches.items()}
        for trainer, taken in zip(trainers, seconds, strict=True):
            begin = time.process_time()
            trainer.step(batch)
            taken.append(time.process_time() - begin)
    row: dict[str, Any] = {}
    for side, file, taken in zip(SIDES, files, seconds, strict=True):
        del taken[:WARM]
        row[side] = {
            **counted(file),
            "cpu_seconds_median": round(statistics.median(taken), 4),
            "cpu_seconds_best": round(min(taken), 4),
        }
    pairs = zip(*seconds, strict=True)
    row["after_over_before"] = round(statistics.median(b / a for a, b in pairs), 4)
    return row


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
