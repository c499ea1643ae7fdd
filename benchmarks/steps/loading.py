"""What it takes to make a ``memplan.Trainer``: seconds and the resident set, of two trees by turns.

    git worktree add ../before COMMIT
    python -m benchmarks.steps.loading ../before . --json benchmarks/results/trainer_load.json

Both trees load the same five steps (``networks.py``), each in processes of its own. Libraries that
any trainer imports are there before the clock starts; PyTorch is installed, and not imported.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import write_record

_CHILD = """
import json, sys, time
from pathlib import Path
import numpy, onnx, onnxruntime
from memplan.training.trainer import Trainer

def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

Path("/proc/self/clear_refs").write_text("5")
before, began = status("VmRSS"), time.perf_counter()
trainer = Trainer(sys.argv[1], threads=1)
seconds = time.perf_counter() - began
grown, highest = status("VmRSS") - before, status("VmHWM") - before
print(json.dumps([seconds, grown, highest, trainer.file.state_bytes]))
"""


def loaded(tree: Path, step: Path) -> list[float]:
    """Seconds, growth, highest growth and bytes of state, of one process."""
    command = [sys.executable, "-c", _CHILD, str(step)]
    # Without the folder of the caller, which is one of the trees.
    environment = {**os.environ, "PYTHONPATH": str(tree.resolve()), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found: list[float] = json.loads(done.stdout)
    return found


def rows(trees: Sequence[Path], rounds: int, folder: Path) -> list[dict[str, Any]]:
    """A row per network and tree."""
    import memplan
    from benchmarks.steps.networks import NETWORKS, training_step

    found = []
    for name in NETWORKS:
        step = folder / f"{name}.onnx"
        memplan.capture(training_step(name), step)
        told: list[list[list[float]]] = [[] for _ in trees]
        for _ in range(rounds):
            for place, tree in enumerate(trees):
                told[place].append(loaded(tree, step))
        for which, runs in zip(("before", "after"), told, strict=True):
            seconds, grown, highest, state = zip(*runs, strict=True)
            row = {
                "model": name,
                "tree": which,
                "seconds": statistics.median(seconds),
                "seconds_by_round": list(seconds),
                "growth_bytes": int(statistics.median(grown)),
                "highest_growth_bytes": int(statistics.median(highest)),
                "state_bytes": int(state[0]),
            }
            print(row, flush=True)
            found.append(row)
    return found


def main() -> int:
    """Compare, and write the record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps.loading")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = rows((options.before, options.after), options.rounds, Path(folder))
    if options.json:
        write_record(options.json, "python -m benchmarks.steps.loading BEFORE AFTER", found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
