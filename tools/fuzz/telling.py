"""Figures of a long run while it runs, and its finds as files."""

from __future__ import annotations

import argparse
import signal
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import cases
import pool
import proofs

_KEPT = 3  # finds of each kind
_SECONDS_OF_A_PAIR = 600.0  # no edit takes so long, nor does a pair to be made, on a loaded machine


def judged(options: argparse.Namespace) -> bool:
    """Hold edits of rewritten files against the proof; whether bits differ that it calls equal.

    Ends after ``--count`` edits or ``--seconds``, whichever comes first.
    """
    seconds = max(options.each, _SECONDS_OF_A_PAIR)
    memory = int(options.memory * (1 << 30))
    run = cases.Run(proofs.COMMAND, {}, options.seed, options.count, seconds, memory)
    told = _Told(run, options)
    with suppress(TimeoutError), closing(pool.outcomes(run, options.workers, options.only)) as all_:
        signal.signal(signal.SIGALRM, _over)
        signal.setitimer(signal.ITIMER_REAL, options.seconds)
        for outcome in all_:
            told.add(outcome)
    signal.setitimer(signal.ITIMER_REAL, 0)
    told.show()
    for place, found in sorted(told.finds.items(), key=lambda item: -len(item[1])):
        print(f"  {len(found)} x {place} (--only {found[0].number})", flush=True)
    return bool(told.finds)


def _over(*_: object) -> None:
    raise TimeoutError


class _Told:
    """What has come of a run so far."""

    def __init__(self, run: cases.Run, options: argparse.Namespace) -> None:
        self.run, self.keep, self.every = run, options.keep, options.every
        self.done, self.counts = 0, Counter[str]()
        self.finds: dict[str, list[pool.Outcome]] = {}
        self.begun = self.shown = time.monotonic()

    def add(self, outcome: pool.Outcome) -> None:
        """Count an edit; a find is printed, and written if that was asked for."""
        self.done += 1
        self.counts.update(outcome.counts or {outcome.place or "ended": 1})
        if outcome.is_defect:
            found = self.finds.setdefault(outcome.place, [])
            found.append(outcome)
            if len(found) == 1:
                print(f"FOUND --only {outcome.number}: {outcome.place}: {outcome.message}")
            if self.keep is not None and len(found) <= _KEPT:
                _keep(self.run, outcome, self.keep)
        if time.monotonic() - self.shown > self.every:
            self.shown = time.monotonic()
            self.show()

    def show(self) -> None:
        """Print the figures."""
        seconds = time.monotonic() - self.begun
        print(_line(self.done, self.counts, len(self.finds), seconds), flush=True)


def _line(done: int, counts: Counter[str], kinds: int, seconds: float) -> str:
    said = ", ".join(f"{what} {count:,}" for what, count in sorted(counts.items()))
    return f"{done:,} edits in {seconds:,.0f} s, {kinds} kinds of finds: {said}"


def _keep(run: cases.Run, outcome: pool.Outcome, folder: Path) -> None:
    target = folder / f"{run.command}-{run.seed}-{outcome.number}"
    target.mkdir(parents=True, exist_ok=True)
    for name, data in run.mutant(outcome.number).files.items():
        (target / name).write_bytes(data)
    (target / "found.txt").write_text(f"{outcome.place}\n{outcome.message}\n")
