"""Damaged and hostile models, edits of rewritten files and random graphs through memplan.

    python tools/fuzz --command analyze --count 1000 --seed 7 --keep finds

A find is exit code 70 (a bug of ours), death by a signal, no end in time, a wrong file that is
called proved (``proof``) or a wrong gradient (``values``); so is more than ``--slow`` seconds of
wall clock or ``--large`` bytes for less than 1 MB of files. ``--only N`` runs one mutant of a run
again. Figures are printed on the way, and after ``--seconds`` what was done until then is told.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import cases
import pool
import proofs
import seeds
import value_record
import values

from memplan.solver.jit import is_cold

_SMALL_FILES = 1_000_000
_KEPT = 3  # finds of each kind
_LEAST_SECONDS = {
    **dict.fromkeys(cases.SESSIONS, 300.0),
    proofs.COMMAND: 600.0,
    values.COMMAND: 60.0,
}
"""Limits of what takes longer than a mutant: a loaded machine is no find."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/fuzz", description=__doc__)
    parser.add_argument("--command", choices=[*cases.COMMANDS, "all"], default="all")
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
    parser.add_argument("--keep", type=Path, help="a folder for the files of finds")
    parser.add_argument("--record", type=Path, help="figures of 'values' go into this JSON file")
    parser.add_argument("--only", type=int, help="run this mutant alone")
    return parser.parse_args()


def main() -> int:
    """Run the mutants; 1 if there was a find."""
    options = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    models = {} if options.unchanged else seeds.built_in()
    for folder in options.seeds:
        models |= seeds.from_folder(folder)
    if options.node_tests:
        models |= seeds.node_tests()
    count = len(models) if options.unchanged else options.count
    commands = cases.COMMANDS if options.command == "all" else (options.command,)
    if any(command in cases.PLANNED for command in commands):
        _compile_planner()
    failed = False
    for command in commands:
        run = cases.Run(
            command,
            models,
            options.seed,
            count,
            max(options.each, _LEAST_SECONDS.get(command, 0.0)),
            int(options.memory * (1 << 30)),
            unchanged=options.unchanged,
        )
        failed |= _Told(run, options).whole()
    return int(failed)


def _compile_planner() -> None:
    """Plan once, without a limit: what is not compiled yet would count as slow, or have no end."""
    if is_cold():
        print("the planner is compiled first", file=sys.stderr, flush=True)
    step = {"deep step": seeds.built_in()["deep step"]}
    for number in range(4):  # draws of the strategy
        run = cases.Run("rewrite", step, number, 1, seconds=600, unchanged=True)
        assert not any(outcome.is_defect for outcome in pool.outcomes(run))


def _over(*_: object) -> None:
    raise TimeoutError


class _Told:
    """What has come of a run so far."""

    def __init__(self, run: cases.Run, options: argparse.Namespace) -> None:
        self.run, self.options = run, options
        self.done, self.counts = 0, Counter[str]()
        self.finds: dict[str, list[pool.Outcome]] = {}
        self.slowest = self.largest = pool.Outcome(-1, 0)
        self.begun = time.monotonic()

    def whole(self) -> bool:
        """Run all and tell of it; whether there was a find."""
        shown = self.begun
        mutants = pool.outcomes(self.run, self.options.workers, self.options.only)
        signal.signal(signal.SIGALRM, _over)
        signal.setitimer(signal.ITIMER_REAL, self.options.seconds)
        with suppress(TimeoutError), closing(mutants):
            for outcome in mutants:
                self._add(outcome)
                if time.monotonic() - shown > self.options.every:
                    shown = time.monotonic()
                    print(self._line(), file=sys.stderr, flush=True)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(self._line())
        for place, found in sorted(self.finds.items(), key=lambda item: -len(item[1])):
            first = min(found, key=lambda outcome: outcome.number)
            print(f"  {len(found)} × {place} (--only {first.number}): {first.message[:160]!r}")
        if self.run.command == values.COMMAND:
            value_record.tell(self.run, self.counts, self.finds, self.options.record)
        return bool(self.finds)

    def _add(self, outcome: pool.Outcome) -> None:
        """Count a mutant; the first find of a kind is printed, and few are written."""
        self.done += 1
        self.slowest = max(self.slowest, outcome, key=lambda each: each.seconds)
        self.largest = max(self.largest, outcome, key=lambda each: each.peak_bytes)
        ended = "no end" if outcome.code is None else f"exit {outcome.code}"
        self.counts.update(outcome.counts or {ended: 1})
        for place in self._places(outcome):
            found = self.finds.setdefault(place, [])
            found.append(outcome)
            if len(found) == 1:
                print(f"FOUND --only {outcome.number}: {place}: {outcome.message}", flush=True)
            if self.options.keep is not None and len(found) <= _KEPT:
                self._keep(outcome)

    def _places(self, outcome: pool.Outcome) -> Iterator[str]:
        """What is wrong with a mutant."""
        if outcome.is_defect:
            yield outcome.place
        elif self.run.command in cases.MUTATED and self._is_small(outcome):
            most = self.options.slow * pool.patience()
            # Once more, alone: the processor may have been somebody else's.
            if outcome.seconds > most and all(
                again.seconds > most for again in pool.outcomes(self.run, only=outcome.number)
            ):
                yield "slow"
            if outcome.peak_bytes > self.options.large:
                yield "large"

    def _is_small(self, outcome: pool.Outcome) -> bool:
        return self.run.mutant(outcome.number).nbytes < _SMALL_FILES

    def _line(self) -> str:
        whole = self.options.only is not None or self.done == self.run.count
        number = f"{self.done}" if whole else f"{self.done} of {self.run.count}"
        said = ", ".join(f"{name}: {n:,}" for name, n in sorted(value_record.short(self.counts)))
        return (
            f"{self.run.command}: {number} mutants in {time.monotonic() - self.begun:,.0f} s, "
            f"seed {self.run.seed}: {said}; slowest {self.slowest.seconds:.1f} s (--only "
            f"{self.slowest.number}), largest {self.largest.peak_bytes / 1e6:.0f} MB (--only "
            f"{self.largest.number})"
        )

    def _keep(self, outcome: pool.Outcome) -> None:
        folder = f"{self.run.command}-{self.run.seed}-{outcome.number}"
        target = self.options.keep / folder
        target.mkdir(parents=True, exist_ok=True)
        mutant = self.run.mutant(outcome.number)
        for name, data in mutant.files.items():
            (target / name).write_bytes(data)
        calls = "".join(" ".join(call) + "\n" for call in mutant.calls)
        (target / "found.txt").write_text(f"{outcome.place}\n{outcome.message}\n{calls}")


if __name__ == "__main__":
    sys.exit(main())
