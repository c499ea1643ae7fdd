"""Damaged and hostile models, edits of rewritten files and random graphs through memplan.

    python tools/fuzz --command analyze --count 1000 --seed 7 --keep finds

A find is exit code 70 (a bug of ours), death by a signal, no end in time, a wrong file that is
called proved (``proof``) or a wrong gradient (``values``); of damaged files also more than ten
seconds or 1 GB. An item is known by seed and number, and ``--only N`` runs one again; after
``--seconds`` no item is begun. For several processors start several, with other seeds.
"""

import argparse
import importlib
import itertools
import os
import pickle
import pkgutil
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import hostile
import plans
import proofs
import values
from ended import Ended, forked

import memplan
from helpers.node_tests import all_forms
from memplan.solver.search.warm_up import warm_up

Examine = Callable[[int, int], Ended]
"""From the seed of a run and a number, in a process and a folder of its own."""
EXAMINED: dict[str, Examine] = {
    **{name: partial(hostile.examined, name) for name in hostile.COMMANDS},
    **{name: partial(plans.examined, name) for name in plans.SESSIONS},
    "proof": proofs.examined,
    "values": values.examined,
}
_LEAST_SECONDS = {
    "validate": 60.0,
    "proof": 600.0,
    "values": 60.0,
    **dict.fromkeys(plans.SESSIONS, 300.0),
}
"""Limits of what takes longer than a damaged file: a loaded machine is no find."""
_MOST_PATIENT = 5  # times a limit, where the processors are also others'
_ADDRESSES = 8 << 30  # bytes that an item may ask for
_SLOW_SECONDS, _LARGE_BYTES = 10.0, 10**9  # too much for a small file
_FRUGAL = {*hostile.COMMANDS} - {"validate"}  # which runs a file: that takes what the file asks for
_OF_PYTORCH = ("memplan.pytorch", "memplan.api.capture")  # large, and never asked here
_KEPT = 3  # finds of each kind


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an item ended, and what it took: wall clock, and the resident memory of the process at
    its highest."""

    number: int
    seconds: float
    peak_bytes: int
    ended: Ended


def outcome(examine: Examine, number: int, seconds: float, options: argparse.Namespace) -> Outcome:
    """What comes of an item in a forked child with limits of memory and time."""
    with tempfile.TemporaryDirectory(prefix="memplan-fuzz-") as name:
        begun, folder = time.monotonic(), Path(name)
        work = partial(_work, examine, number, folder, options)
        code, peak, late = forked(work, seconds * patience())
        told = folder / "told"
        died = Ended({}, "no end in time" if late else f"died ({code})")
        ended = pickle.loads(told.read_bytes()) if told.exists() else died
        return Outcome(number, time.monotonic() - begun, peak, ended)


def patience() -> float:
    """By how much seconds are longer where the processors are also others'."""
    return min(max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)), _MOST_PATIENT)


def _work(examine: Examine, number: int, folder: Path, options: argparse.Namespace) -> None:
    """In the child: examine one item, and tell of it in the folder."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
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
    telling = folder / "telling"
    short = Ended(dict(ended.counts), ended.place, ended.message[:4000])
    telling.write_bytes(pickle.dumps(short))
    telling.rename(folder / "told")


def _place(command: str, one: Outcome) -> str:
    """What is wrong with an item; a small file that took too much is, too."""
    if one.ended.place or command not in _FRUGAL:
        return one.ended.place
    if one.seconds > _SLOW_SECONDS * patience():
        return "slow"
    return "large" if one.peak_bytes > _LARGE_BYTES else ""


def run(command: str, options: argparse.Namespace) -> bool:
    """Run all items of a command and tell of them; whether there was a find."""
    seconds = max(options.each, _LEAST_SECONDS.get(command, 0.0))
    numbers = [options.only] if options.only is not None else range(options.count)
    begun, found = time.monotonic(), list[Outcome]()
    counts, finds = Counter[str](), Counter[str]()
    for number in itertools.takewhile(
        lambda _: time.monotonic() - begun <= options.seconds, numbers
    ):
        one = outcome(EXAMINED[command], number, seconds, options)
        found.append(one)
        counts.update(one.ended.counts)
        if place := _place(command, one):
            finds[place] += 1
            if finds[place] <= _KEPT:
                print(f"FOUND --only {number}: {place}: {one.ended.message}", flush=True)
    kinds = Counter[str]()
    for name, count in counts.items():
        kinds[name.partition(":")[0]] += count
    said = ", ".join(f"{name} {n:,}" for name, n in sorted(kinds.items()))
    print(f"{command}: {len(found)} of {len(numbers)}, seed {options.seed}: {said}")
    for name, count in counts.most_common():
        if ":" in name:
            print(f"  {count:,} × {name}")
    if found:
        slow = max(found, key=lambda one: one.seconds)
        large = max(found, key=lambda one: one.peak_bytes)
        print(f"  {time.monotonic() - begun:,.0f} s, slowest {slow.seconds:.1f} s (--only ", end="")
        print(f"{slow.number}), largest {large.peak_bytes / 1e6:.0f} MB (--only {large.number})")
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
    add("--seconds", type=float, default=600.0, help="limit per command")
    add("--each", type=float, default=20.0, help="limit per item, in seconds")
    add("--keep", type=Path, help="a folder for the files of finds")
    add("--only", type=int, help="run this item alone")
    options = parser.parse_args()
    options.keep = options.keep and options.keep.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # What children would each do again, and what is not compiled yet would count as slow.
    importlib.import_module("onnxruntime")
    for module in pkgutil.walk_packages(memplan.__path__, "memplan."):
        if not module.name.startswith(_OF_PYTORCH):
            importlib.import_module(module.name)
    warm_up()
    commands = [*EXAMINED] if options.command == "all" else [options.command]
    if not {*commands} <= {*hostile.COMMANDS}:
        all_forms()
    hostile.seeds()
    failed = False
    for command in commands:
        options.command = command
        failed |= run(command, options)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
