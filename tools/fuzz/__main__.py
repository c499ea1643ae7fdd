"""Damaged and hostile models, edits of rewritten files and random graphs through memplan.

    python tools/fuzz --command analyze --count 1000 --seed 7 --keep finds

A find is exit code 70 (a bug of ours), death by a signal, no end in time, a wrong file that is
called proved (``proof``) or a wrong gradient (``values``); of damaged files also more than
``--slow`` seconds or ``--large`` bytes. An item is known by seed and number, and ``--only N`` runs
one again; after ``--seconds`` no item is begun.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import drafts
import hostile
import plans
import proofs
import values
from ended import Ended

from memplan.solver.search.warm_up import warm_up

Examine = Callable[[int, int], Ended]
"""From the seed of a run and a number, in a process and a folder of its own."""
EXAMINED: dict[str, Examine] = {
    **{name: partial(hostile.examined, name) for name in hostile.COMMANDS},
    **{name: partial(plans.examined, name) for name in plans.SESSIONS},
    "proof": proofs.examined,
    "values": values.examined,
}
DRAWN = {"values", "proof", *plans.SESSIONS}
PLANNED = {"rewrite", "validate", "proof", *plans.SESSIONS}
_LEAST_SECONDS = {"proof": 600.0, "values": 60.0, **dict.fromkeys(plans.SESSIONS, 300.0)}
"""Limits of what takes longer than a damaged file: a loaded machine is no find."""
_MOST_PATIENT = 5  # times a limit, where the processors are also others'
_KEPT = 3  # finds of each kind


@dataclass(slots=True)
class Outcome:
    """What came of an item, and what it took: wall clock, and the resident memory of the process
    at its highest. ``place`` is empty where nothing is wrong."""

    number: int
    seconds: float
    peak_bytes: int
    place: str = ""
    message: str = ""
    counts: dict[str, int] = field(default_factory=dict)


def outcomes(
    examine: Examine, numbers: Iterable[int], options: argparse.Namespace, seconds: float
) -> Iterator[Outcome]:
    """The outcomes of items, as they end: each in a forked child with limits of memory and time."""
    waiting = iter(numbers)
    running: dict[int, tuple[int, float, Path]] = {}
    with tempfile.TemporaryDirectory(prefix="memplan-fuzz-") as name:
        try:
            while True:
                while len(running) < options.workers:
                    number = next(waiting, None)
                    if number is None:
                        break
                    folder = Path(name) / str(number)
                    folder.mkdir()
                    pid = os.fork()
                    if pid == 0:
                        _work(examine, number, folder, options)
                    running[pid] = number, time.monotonic(), folder
                if not running:
                    return
                # Each by itself: whoever runs this may have children of its own.
                asked = (os.wait4(each, os.WNOHANG) for each in running)
                pid, status, used = next((found for found in asked if found[0]), (0, 0, None))
                if used is None:
                    for late, (_, begun, _) in running.items():
                        if time.monotonic() - begun > seconds * patience():
                            os.kill(late, signal.SIGKILL)
                    time.sleep(0.005)
                    continue
                number, begun, folder = running.pop(pid)
                spent = time.monotonic() - begun
                outcome = Outcome(number, spent, 1024 * used.ru_maxrss)
                told = folder / "told.json"
                if told.exists():
                    report = json.loads(told.read_text())
                    outcome.place, outcome.message, outcome.counts, modules = report
                    _import(modules)
                else:
                    killed = os.WIFSIGNALED(status) and spent > seconds
                    outcome.place = "no end in time" if killed else f"died ({status})"
                yield outcome
        finally:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def patience() -> float:
    """By how much seconds are longer where the processors are also others'."""
    return min(max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)), _MOST_PATIENT)


def _import(modules: Iterable[str]) -> None:
    """Import what a child had to, so that those to come begin with it."""
    for name in set(modules) - sys.modules.keys():
        with suppress(Exception):
            importlib.import_module(name)


def _work(examine: Examine, number: int, folder: Path, options: argparse.Namespace) -> NoReturn:
    """In the child: examine one item, and tell of it in the folder."""
    try:
        memory = int(options.memory * (1 << 30))
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # What is killed leaves its own temporary folders behind.
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(quiet, stream)
        work = folder / "work"
        work.mkdir()
        os.chdir(work)
        ended = examine(options.seed, number)
        if ended.place and options.keep is not None:
            target = options.keep / f"{options.command}-{options.seed}-{number}"
            target.mkdir(parents=True, exist_ok=True)
            for name, data in ended.files.items():
                (target / name).write_bytes(data)
            (target / "found.txt").write_text(f"{ended.place}\n{ended.message}\n")
        told = folder / "telling.json"
        modules = sorted(name for name in sys.modules if not name.startswith(drafts.TESTS))
        report = [ended.place, ended.message[:4000], dict(ended.counts), modules]
        told.write_text(json.dumps(report))
        told.rename(folder / "told.json")
    finally:
        os._exit(0)


def run(command: str, options: argparse.Namespace) -> bool:
    """Run all items of a command and tell of them; whether there was a find."""
    examine = EXAMINED[command]
    seconds = max(options.each, _LEAST_SECONDS.get(command, 0.0))
    numbers = [options.only] if options.only is not None else range(options.count)
    begun, done = time.monotonic(), 0
    counts, finds = Counter[str](), Counter[str]()
    slowest = largest = Outcome(-1, 0.0, 0)
    until = itertools.takewhile(lambda _: time.monotonic() - begun <= options.seconds, numbers)
    for outcome in outcomes(examine, until, options, seconds):
        done += 1
        counts.update(outcome.counts)
        slowest = max(slowest, outcome, key=lambda each: each.seconds)
        largest = max(largest, outcome, key=lambda each: each.peak_bytes)
        place = outcome.place
        if not place and command in hostile.COMMANDS:  # a small file that took too much
            place = "large" if outcome.peak_bytes > options.large else ""
            place = "slow" if outcome.seconds > options.slow * patience() else place
        if place:
            finds[place] += 1
            if finds[place] <= _KEPT:
                print(f"FOUND --only {outcome.number}: {place}: {outcome.message}", flush=True)
    kinds = Counter[str]()
    for name, count in counts.items():
        kinds[name.partition(":")[0]] += count
    said = ", ".join(f"{name} {n:,}" for name, n in sorted(kinds.items()))
    print(
        f"{command}: {done} of {len(numbers)} in {time.monotonic() - begun:,.0f} s, seed "
        f"{options.seed}: {said}; slowest {slowest.seconds:.1f} s (--only {slowest.number}), "
        f"largest {largest.peak_bytes / 1e6:.0f} MB (--only {largest.number})"
    )
    for name, count in counts.most_common():
        if ":" in name:
            print(f"  {count:,} × {name}")
    for place, count in finds.most_common():
        print(f"  FOUND {count} × {place}")
    return bool(finds)


def main() -> int:
    """Run the items; 1 if there was a find."""
    parser = argparse.ArgumentParser(prog="tools/fuzz", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add: Any = parser.add_argument
    add("--command", choices=[*EXAMINED, "all"], default="all")
    add("--count", type=int, default=500, help="items per command")
    add("--seed", type=int, default=1, help="another seed, other items")
    add("--workers", type=int, default=1)
    add("--seconds", type=float, default=600.0, help="limit per command")
    add("--each", type=float, default=20.0, help="limit per item, in seconds")
    add("--memory", type=float, default=8.0, help="limit of addresses per item, in GiB")
    add("--slow", type=float, default=10.0, help="seconds that are too many")
    add("--large", type=float, default=1e9, help="bytes that are too many")
    add("--keep", type=Path, help="a folder for the files of finds")
    add("--only", type=int, help="run this item alone")
    options = parser.parse_args()
    options.keep = options.keep and options.keep.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    commands = EXAMINED if options.command == "all" else (options.command,)
    if PLANNED.intersection(commands):
        warm_up()  # what is not compiled yet would count as slow
    if DRAWN.intersection(commands):
        for module in drafts.MODULES:
            drafts.forms(module)
    if set(hostile.COMMANDS).intersection(commands):
        hostile.seeds()
    failed = False
    for command in commands:
        options.command = command
        failed |= run(command, options)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
