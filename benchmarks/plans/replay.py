"""A plan replayed against the search that found it: the same bytes of file, in which time.

    python -m benchmarks.plans.replay MODEL... --json FILE

Every model is planned by the installed command with its default time limit, in both kinds of
session and, tuned, with chunks, and the plan is replayed by the command again: whole runs of the
program, in seconds, with the reading and writing of files, fusions, simulation and proof.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.models import DIMS
from benchmarks.record import write_record
from memplan.planning.plan_decisions import KEPT
from memplan.planning.plan_file import read_plan

COMMAND = "python -m benchmarks.plans.replay sample_models/*.onnx RUNNABLE/*.onnx --json FILE"
CASES = {
    "tuned": ("--budget", "70%"),
    "tuned, lowest": ("--budget", "min"),
    "tuned, chunks": ("--budget", "60%", "--chunk", "auto"),
    "default": ("--budget", "70%", "--session", "default"),
}


def main() -> None:
    """Plan, replay, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--memplan", default=str(Path(sys.executable).with_name("memplan")))
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    rows: list[dict[str, object]] = []
    for model in given.models:
        for case in given.cases:
            with tempfile.TemporaryDirectory() as folder:
                row = compared(given.memplan, model, case, Path(folder))
            print(row, flush=True)
            rows.append(row)
            write_record(given.json, COMMAND, rows)


def compared(program: str, model: Path, case: str, folder: Path) -> dict[str, object]:
    """One model in one case."""
    plan, first, second = folder / "plan.json", folder / "first.onnx", folder / "second.onnx"
    row: dict[str, object] = {"model": model.stem, "case": case}
    sizes = [f"--dim={name}={size}" for name, size in DIMS.get(model.stem, {}).items()]
    search = (*sizes, "-o", str(first), "--plan-out", str(plan), *CASES[case])
    code, seconds = timed(program, model, *search)
    if code:
        return row | {"search": f"exit {code}"}
    row["search_seconds"] = seconds
    code, row["replay_seconds"] = timed(program, model, "--plan", str(plan), "-o", str(second))
    decided = read_plan(plan)
    return row | {
        "same_bytes": code == 0 and first.read_bytes() == second.read_bytes(),
        "nodes": len(decided.sequence),
        "decisions": sum(each.decision != KEPT for each in decided.tensors),
        "chunks": len(decided.chunks),
        "loops": len(decided.loops),
        "forms": sorted({each.decision for each in decided.tensors} - {KEPT}),
        "plan_bytes": plan.stat().st_size,
    }


def timed(program: str, model: Path, *arguments: str) -> tuple[int, float]:
    """The exit code of ``memplan rewrite``, and its seconds."""
    start = time.perf_counter()
    # External weights stay where they are: two files in one folder would write over a copy.
    done = subprocess.run([program, "rewrite", str(model), "-q", *arguments], check=False)
    return done.returncode, round(time.perf_counter() - start, 2)


if __name__ == "__main__":
    main()
