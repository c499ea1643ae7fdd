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

MODELS = ("gpt", "vit", "unet", "resnet", "lstm")
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


def rows(name: str, trees: Sequence[Path], rounds: int, folder: Path) -> list[dict[str, Any]]:
    """The rows of one network, one per tree."""
    import memplan
    from benchmarks.steps.networks import training_step

    step = folder / f"{name}.onnx"
    memplan.capture(training_step(name), step)
    told: list[list[list[float]]] = [[] for _ in trees]
    for _ in range(rounds):
        for place, tree in enumerate(trees):
            told[place].append(loaded(tree, step))
    found = []
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
    """Compare, and write the record; networks that are not asked for keep their rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps.loading")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    there = options.json and options.json.exists()
    kept = json.loads(options.json.read_text())["results"] if there else []
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            found = rows(name, (options.before, options.after), options.rounds, Path(folder))
        kept = [*(row for row in kept if row["model"] != name), *found]
        if options.json:
            write_record(options.json, "python -m benchmarks.steps.loading BEFORE AFTER", kept)
    return 0


if __name__ == "__main__":
    sys.exit(main())
