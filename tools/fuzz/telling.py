"""Figures of a long run while it runs, and its finds as files."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

import cases
import pool
import proofs

_EVERY = 20.0  # seconds between two lines
_KEPT = 3  # finds of each kind
_SECONDS_OF_A_PAIR = 600.0  # no edit takes so long, nor does a pair to be made, on a loaded machine


def judged(options: argparse.Namespace) -> bool:
    """Hold edits of rewritten files against the proof; whether bits differ that it calls equal.

    Ends after ``--count`` edits or ``--within`` seconds, whichever comes first, but for what is
    under way.
    """
    seconds = max(options.seconds, _SECONDS_OF_A_PAIR)
    memory = int(options.memory * (1 << 30))
    run = cases.Run(proofs.COMMAND, {}, options.seed, options.count, seconds, memory)
    counts: Counter[str] = Counter()
    finds: dict[str, list[pool.Outcome]] = {}
    begun = told = time.monotonic()
    done = 0
    for outcome in pool.outcomes(run, options.workers, options.only):
        done += 1
        counts.update(outcome.counts or {outcome.place or "ended": 1})
        if outcome.is_defect:
            found = finds.setdefault(outcome.place, [])
            found.append(outcome)
            if len(found) == 1:
                print(f"FOUND --only {outcome.number}: {outcome.place}: {outcome.message}")
            if options.keep is not None and len(found) <= _KEPT:
                _keep(run, outcome, options.keep)
        now = time.monotonic()
        if now - told > _EVERY:
            told = now
            print(_line(done, counts, len(finds), now - begun), flush=True)
        if options.within is not None and now - begun > options.within:
            break
    print(_line(done, counts, len(finds), time.monotonic() - begun), flush=True)
    for place, found in sorted(finds.items(), key=lambda item: -len(item[1])):
        print(f"  {len(found)} x {place} (--only {found[0].number})")
    sys.stdout.flush()
    return bool(finds)


def _line(done: int, counts: Counter[str], kinds: int, seconds: float) -> str:
    said = ", ".join(f"{what} {count:,}" for what, count in sorted(counts.items()))
    return f"{done:,} edits in {seconds:,.0f} s, {kinds} kinds of finds: {said}"


def _keep(run: cases.Run, outcome: pool.Outcome, folder: Path) -> None:
    target = folder / f"{run.command}-{run.seed}-{outcome.number}"
    target.mkdir(parents=True, exist_ok=True)
    for name, data in run.mutant(outcome.number).files.items():
        (target / name).write_bytes(data)
    (target / "found.txt").write_text(f"{outcome.place}\n{outcome.message}\n")
