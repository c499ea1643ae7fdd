"""Damaged and hostile models through memplan: exit codes counted, defects kept as files.

    python tools/fuzz --command analyze --count 1000 --seed 7 --keep finds

A defect is exit code 70 (a bug of ours), death by a signal, or no end in time. ``--only N`` runs
one mutant of a run again, and shows where it fails.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import pool
import seeds


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/fuzz", description=__doc__)
    parser.add_argument("--command", choices=[*pool.COMMANDS, "all"], default="all")
    parser.add_argument("--count", type=int, default=500, help="mutants per command")
    parser.add_argument("--seed", type=int, default=1, help="another seed, other mutants")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0, help="limit per mutant")
    parser.add_argument("--memory", type=float, default=4.0, help="limit per mutant, in GiB")
    parser.add_argument("--seeds", type=Path, action="append", default=[], help="folders of models")
    parser.add_argument("--node-tests", action="store_true", help="onnx's node tests are seeds too")
    parser.add_argument("--keep", type=Path, help="a folder for the mutants that find a defect")
    parser.add_argument("--only", type=int, help="run this mutant alone")
    return parser.parse_args()


def main() -> int:
    """Run the mutants; 1 if there was a defect."""
    options = _arguments()
    models = seeds.built_in()
    for folder in options.seeds:
        models |= seeds.from_folder(folder)
    if options.node_tests:
        models |= seeds.node_tests()
    commands = pool.COMMANDS if options.command == "all" else (options.command,)
    failed = False
    for command in commands:
        memory = int(options.memory * (1 << 30))
        run = pool.Run(command, models, options.seed, options.count, options.seconds, memory)
        failed |= _report(run, options)
    return int(failed)


def _report(run: pool.Run, options: argparse.Namespace) -> bool:
    codes: Counter[str] = Counter()
    places: dict[str, list[pool.Outcome]] = {}
    for outcome in pool.outcomes(run, options.workers, options.only):
        codes["no end" if outcome.code is None else str(outcome.code)] += 1
        if outcome.is_defect:
            places.setdefault(outcome.place, []).append(outcome)
    counts = ", ".join(f"exit {code}: {count}" for code, count in sorted(codes.items()))
    print(f"{run.command}: {sum(codes.values())} mutants, seed {run.seed}: {counts}")
    for place, found in sorted(places.items(), key=lambda item: -len(item[1])):
        first = min(found, key=lambda outcome: outcome.number)
        print(f"  {len(found)} × {place} (--only {first.number}): {first.message[:160]!r}")
        if options.keep is not None:
            _keep(run, first, options.keep)
    return bool(places)


def _keep(run: pool.Run, outcome: pool.Outcome, folder: Path) -> None:
    target = folder / f"{run.command}-{run.seed}-{outcome.number}"
    target.mkdir(parents=True, exist_ok=True)
    files, arguments = run.mutant(outcome.number)
    for name, data in files.items():
        (target / name).write_bytes(data)
    (target / "arguments.txt").write_text("\n".join(arguments) + "\n")


if __name__ == "__main__":
    sys.exit(main())
