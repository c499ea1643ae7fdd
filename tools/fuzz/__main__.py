"""Damaged and hostile models through memplan: exit codes counted, defects kept as files.

    python tools/fuzz --command analyze --count 1000 --seed 7 --keep finds

A defect is exit code 70 (a bug of ours), death by a signal, or no end in time; so is more than
``--slow`` seconds of wall clock or ``--large`` bytes for less than 1 MB of files. ``--only N`` runs
one mutant of a run again, and shows where it fails. Figures are printed on the way, and after
``--seconds`` what was done until then is what is told.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import cases
import pool
import proofs
import seeds
import telling
import value_runs
import values

from memplan.solver.jit import is_cold

_SMALL_FILES = 1_000_000
_NAMED = re.compile(r"'[^']*'|\d+")  # what differs from model to model in a message
_KEPT = 3  # mutants of each defect


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/fuzz", description=__doc__)
    parser.add_argument(
        "--command", choices=[*cases.COMMANDS, values.COMMAND, "all"], default="all"
    )
    parser.add_argument("--count", type=int, default=500, help="mutants per command")
    parser.add_argument("--seed", type=int, default=1, help="another seed, other mutants")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600.0, help="limit per command")
    parser.add_argument("--each", type=float, default=20.0, help="limit per mutant, in seconds")
    parser.add_argument("--memory", type=float, default=4.0, help="limit per mutant, in GiB")
    parser.add_argument("--slow", type=float, default=10.0, help="seconds that are too many")
    parser.add_argument("--large", type=float, default=1e9, help="bytes that are too many")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between figures")
    parser.add_argument("--unchanged", action="store_true", help="each of the seeds, as it is")
    parser.add_argument("--seeds", type=Path, action="append", default=[], help="folders of models")
    parser.add_argument("--node-tests", action="store_true", help="onnx's node tests are seeds too")
    parser.add_argument("--keep", type=Path, help="a folder for the mutants that find a defect")
    parser.add_argument("--reasons", action="store_true", help="messages of clean exits, counted")
    parser.add_argument("--record", type=Path, help="figures of 'values' go into this JSON file")
    parser.add_argument("--only", type=int, help="run this mutant alone")
    return parser.parse_args()


def main() -> int:
    """Run the mutants; 1 if there was a defect."""
    options = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if options.command == proofs.COMMAND:
        return int(telling.judged(options))
    if options.command == values.COMMAND:  # not through the program, and not among "all"
        return value_runs.main(options)
    models = {} if options.unchanged else seeds.built_in()
    for folder in options.seeds:
        models |= seeds.from_folder(folder)
    if options.node_tests:
        models |= seeds.node_tests()
    count = len(models) if options.unchanged else options.count
    commands = cases.COMMANDS if options.command == "all" else (options.command,)
    if is_cold():
        print("the planner is compiled first", file=sys.stderr, flush=True)
    _compile_planner()
    failed = False
    for command in commands:
        run = cases.Run(
            command,
            models,
            options.seed,
            count,
            options.each,
            int(options.memory * (1 << 30)),
            unchanged=options.unchanged,
        )
        failed |= _report(run, options)
    return int(failed)


def _compile_planner() -> None:
    """Plan once, without a limit: what is not compiled yet would count as slow, or have no end."""
    step = {"deep step": seeds.built_in()["deep step"]}
    for number in range(4):  # draws of the strategy
        run = cases.Run("rewrite", step, number, 1, seconds=600, unchanged=True)
        assert not any(outcome.is_defect for outcome in pool.outcomes(run))


def _report(run: cases.Run, options: argparse.Namespace) -> bool:
    """Run the mutants and tell how they ended; whether one found a defect."""
    codes: Counter[str] = Counter()
    defects: dict[str, list[pool.Outcome]] = {}
    calls: Counter[str] = Counter()
    reasons: dict[str, list[int]] = {}
    slowest = largest = pool.Outcome(-1, 0)
    for outcome in _in_time(run, options, codes):
        codes["no end" if outcome.code is None else f"exit {outcome.code}"] += 1
        calls.update(outcome.counts)
        slowest = max(slowest, outcome, key=lambda each: each.seconds)
        largest = max(largest, outcome, key=lambda each: each.peak_bytes)
        if outcome.is_defect:
            defects.setdefault(outcome.place, []).append(outcome)
        elif outcome.code and options.reasons:
            message = outcome.message.partition(" | ")[0]
            reason = f"exit {outcome.code}: {_NAMED.sub('…', message)}"
            reasons.setdefault(reason, []).append(outcome.number)
        if not outcome.is_defect and run.mutant(outcome.number).nbytes < _SMALL_FILES:
            most = options.slow * pool.patience()
            if outcome.seconds > most and _again(run, outcome) > most:
                defects.setdefault("slow", []).append(outcome)
            if outcome.peak_bytes > options.large:
                defects.setdefault("large", []).append(outcome)
    print(
        f"{run.command}: {_done(run, codes, options)} mutants, seed {run.seed}: {_counted(codes)}; "
        f"slowest {slowest.seconds:.1f} s (--only {slowest.number}), largest "
        f"{largest.peak_bytes / 1e6:.0f} MB (--only {largest.number})",
        flush=True,
    )
    if calls:
        print(f"  {sum(calls.values())} rewrites: " + _counted(calls))
    for reason, numbers in sorted(reasons.items(), key=lambda item: -len(item[1])):
        print(f"  {len(numbers)} × {reason} (--only {min(numbers)})")
    for place, found in sorted(defects.items(), key=lambda item: -len(item[1])):
        first = min(found, key=lambda outcome: outcome.number)
        print(f"  {len(found)} × {place} (--only {first.number}): {first.message[:160]!r}")
        if options.keep is not None:
            for outcome in sorted(found, key=lambda each: each.number)[:_KEPT]:
                _keep(run, outcome, options.keep)
    return bool(defects)


def _in_time(
    run: cases.Run, options: argparse.Namespace, codes: Counter[str]
) -> Iterator[pool.Outcome]:
    """The outcomes that come in time; prints how far it is, as counted in ``codes``."""
    begun = shown = time.monotonic()
    with closing(pool.outcomes(run, options.workers, options.only)) as outcomes:
        for outcome in outcomes:
            yield outcome
            now = time.monotonic()
            if now - begun > options.seconds:
                return
            if now - shown > options.every:
                rate = sum(codes.values()) / (now - begun)
                done = f"{sum(codes.values())} of {run.count}, {rate:.1f} a second"
                print(f"{run.command}: {done}: {_counted(codes)}", file=sys.stderr, flush=True)
                shown = now


def _done(run: cases.Run, codes: Counter[str], options: argparse.Namespace) -> str:
    done = sum(codes.values())
    whole = options.only is not None or done == run.count
    return f"{done}" if whole else f"{done} of {run.count} (in {options.seconds:g} s)"


def _counted(numbers: Counter[str]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in sorted(numbers.items()))


def _again(run: cases.Run, outcome: pool.Outcome) -> float:
    """Seconds of a mutant alone: the processor may have been somebody else's."""
    return min(again.seconds for again in pool.outcomes(run, only=outcome.number))


def _keep(run: cases.Run, outcome: pool.Outcome, folder: Path) -> None:
    target = folder / f"{run.command}-{run.seed}-{outcome.number}"
    target.mkdir(parents=True, exist_ok=True)
    mutant = run.mutant(outcome.number)
    for name, data in mutant.files.items():
        (target / name).write_bytes(data)
    calls = "".join(" ".join(call) + "\n" for call in mutant.calls)
    (target / "calls.txt").write_text(calls)


if __name__ == "__main__":
    sys.exit(main())
