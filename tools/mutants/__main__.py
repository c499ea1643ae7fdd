"""Break the program in one place, and see whether a test notices.

    python tools/mutants --sample 100 --area memplan/simulate
    python tools/mutants --list

Operators are changed at places drawn from chosen folders (:mod:`operators`).
Each mutant is tried in a copy of the tree. Exit code 1: one survived, or could not be tried.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mutant import ROOT, Mutant
from operators import AREAS, sample
from trial import Trial, Verdict


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the mutants, try none")
    parser.add_argument("--sample", type=int, default=60, metavar="N", help="how many (60)")
    parser.add_argument("--area", action="append", default=[], metavar="PATH", help="repeatable")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N")
    parser.add_argument("--limit", type=float, default=120, help="seconds per run of tests (120)")
    parser.add_argument("--narrow", action="store_true", help="a mutant's own tests alone")
    parser.add_argument("--out", type=Path, help="write the verdicts as JSON")
    return parser.parse_args(given)


def _verdicts(mutants: list[Mutant], arguments: argparse.Namespace) -> Iterator[Verdict]:
    """Try the mutants, ``--jobs`` at a time in as many copies of the tree, as each is done."""
    waiting: queue.SimpleQueue[Trial] = queue.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="mutants_") as folder:
        for number in range(arguments.jobs):
            copy = _new(Path(folder) / f"copy_{number}")
            waiting.put(Trial(ROOT, copy, arguments.limit))

        def work(mutant: Mutant) -> Verdict:
            trial = waiting.get()
            try:
                return _told(trial.try_out(mutant, not arguments.narrow))
            finally:
                waiting.put(trial)

        with ThreadPoolExecutor(arguments.jobs) as pool:
            yield from pool.map(work, mutants)


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _told(verdict: Verdict) -> Verdict:
    print(f"{verdict.state:9} {verdict.seconds:6.1f} s  {verdict.mutant.name}  {verdict.by}")
    sys.stdout.flush()
    return verdict


def _rows(verdicts: list[Verdict]) -> str:
    rows = [
        {"name": v.mutant.name, "breaks": v.mutant.breaks, "state": v.state, "by": v.by}
        for v in verdicts
    ]
    return json.dumps(rows, indent=1) + "\n"


def main(given: list[str] | None = None) -> int:
    """The command; the exit code."""
    arguments = _arguments(given)
    mutants = sample(arguments.area or AREAS, arguments.sample, arguments.seed)
    if arguments.list:
        for mutant in mutants:
            print(f"{mutant.name}: {mutant.breaks} ({mutant.file})")
        return 0
    verdicts = []
    for verdict in _verdicts(mutants, arguments):
        verdicts.append(verdict)
        if arguments.out:
            arguments.out.write_text(_rows(verdicts))
    states = Counter(verdict.state for verdict in verdicts)
    tried = states["killed"] + states["survived"]
    print(f"killed {states['killed']} of {tried}", end="")
    print("".join(f", {n} {state}" for state, n in states.items() if state in ("stale", "untried")))
    for verdict in verdicts:
        if verdict.state == "survived":
            print(f"survived: {verdict.mutant.name}: {verdict.mutant.breaks}")
    return 0 if states["killed"] == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
