"""Damaged and hostile models, random training graphs and edits of rewritten files through memplan.

    python tools/fuzz --command analyze --count 1000 --seed 7 --keep finds

A find is exit code 70 (a bug of ours), death by a signal, no end in time, a wrong file that is
called proved (``proof``) or a wrong gradient (``values``); of damaged files also more than ten
seconds of the processor or 1 GB. An item is known by seed and number, and ``--only N`` runs one
again; after ``--seconds`` no item is begun. For several processors start several, with other seeds.
"""

import argparse
import importlib
import itertools
import math
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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import hostile
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
    "proof": proofs.examined,
    "values": values.examined,
}
_LEAST_SECONDS = {"rewrite": 60.0, "validate": 60.0, "proof": 600.0, "values": 60.0}
"""Limits of what takes longer than a damaged file."""
_PATIENCE = 5  # by how much longer an item may take by the clock: processors are also others'
_ADDRESSES = 8 << 30  # bytes that an item may ask for
_SLOW_SECONDS, _LARGE_BYTES = 10.0, 10**9  # too much for a small file
_FRUGAL = {*hostile.COMMANDS} - {"validate"}  # which runs a file: that takes what the file asks for
_OF_PYTORCH = ("memplan.pytorch", "memplan.api.capture")  # large, and never asked here
_KEPT = 3  # finds of each kind


def outcome(examine: Examine, number: int, seconds: float, options: argparse.Namespace) -> Ended:
    """What comes of an item in a forked child with limits of memory and of the processor's time;
    the files of a find are kept."""
    with tempfile.TemporaryDirectory(prefix="memplan-fuzz-") as name:
        told = Path(name) / "told"
        work = partial(_work, examine, options.seed, number, seconds, told)
        code, used, late = forked(work, seconds * _PATIENCE)
        late = late or code == -signal.SIGXCPU
        died = Ended({}, "no end in time" if late else f"died ({code})")
        ended: Ended = pickle.loads(told.read_bytes()) if told.exists() else died
    taken, peak = used.ru_utime + used.ru_stime, 1024 * used.ru_maxrss
    place = ended.place
    if not place and options.command in _FRUGAL:
        slow, large = taken > _SLOW_SECONDS, peak > _LARGE_BYTES
        place = "slow" if slow else "large" if large else ""
    if place and options.keep is not None:
        target = options.keep / f"{options.command}-{options.seed}-{number}"
        target.mkdir(parents=True, exist_ok=True)
        for file, data in ended.files.items():
            (target / file).write_bytes(data)
        (target / "found.txt").write_text(f"{place}\n{ended.message}\n")
    return replace(ended, place=place, files={}, seconds=taken, peak_bytes=peak)


def _work(examine: Examine, seed: int, number: int, seconds: float, told: Path) -> None:
    """In the child: examine one item in a folder beside ``told``, and tell of it there."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), resource.RLIM_INFINITY))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # What is killed leaves its own temporary folders behind.
    os.environ["TMPDIR"] = tempfile.tempdir = str(told.parent)
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(quiet, stream)
    work = told.with_name("work")
    work.mkdir()
    os.chdir(work)
    ended = examine(seed, number)
    part = told.with_suffix(".part")
    part.write_bytes(pickle.dumps(ended))
    part.rename(told)


def run(command: str, options: argparse.Namespace) -> bool:
    """Run all items of a command and tell of them; whether there was a find."""
    seconds = max(options.each, _LEAST_SECONDS.get(command, 0.0))
    numbers = [options.only] if options.only is not None else range(options.count)
    begun, found = time.monotonic(), dict[int, Ended]()
    kinds, counts, finds = Counter[str](), Counter[str](), Counter[str]()
    for number in itertools.takewhile(
        lambda _: time.monotonic() - begun <= options.seconds, numbers
    ):
        one = found[number] = outcome(EXAMINED[command], number, seconds, options)
        for name, count in one.counts.items():
            kind, _, reason = name.partition(":")
            kinds[kind] += count
            counts[name] += count if reason else 0
        if one.place:
            finds[one.place] += 1
            if finds[one.place] <= _KEPT:
                print(f"FOUND --only {number}: {one.place}: {one.message[:4000]}", flush=True)
    said = ", ".join(f"{name} {n:,}" for name, n in sorted(kinds.items()))
    print(f"{command}: {len(found)} of {len(numbers)}, seed {options.seed}: {said}")
    for name, count in (+counts).most_common():
        print(f"  {count:,} × {name}")
    if found:
        slow = max(found, key=lambda number: found[number].seconds)
        large = max(found, key=lambda number: found[number].peak_bytes)
        took = f"slowest {found[slow].seconds:.1f} s of the processor (--only {slow})"
        held = f"largest {found[large].peak_bytes / 1e6:.0f} MB (--only {large})"
        print(f"  {time.monotonic() - begun:,.0f} s, {took}, {held}")
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
    all_forms()
    hostile.seeds()
    failed = False
    for command in commands:
        options.command = command
        failed |= run(command, options)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
