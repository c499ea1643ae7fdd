"""How every benchmark runs: row by row, each printed and written with what figures depend on.

Nothing in a record names the machine or its folders.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    "memplan",
    "numpy",
    "numba",
    "highspy",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-ep-webgpu",
    "torch",
)
Row = dict[str, Any]
_FOLDERS = re.compile(r"(?<![\w.])(?:\.{0,2}/)?(?:[^\s=/]*/)+")


def arguments(program: str, text: str | None) -> argparse.ArgumentParser:
    """A command line with ``--json``; ``program`` is a module of ``benchmarks``."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{program}",
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, help="where the record goes")
    return parser


def run(
    parser: argparse.ArgumentParser,
    rows: Callable[[argparse.Namespace], Iterable[Any]],
    argv: Sequence[str] | None = None,
    *,
    of: Sequence[str] = (),
) -> list[Row]:
    """Make the rows that the command line asks for; each is printed, and written at once.

    Args:
        parser: of :func:`arguments`.
        rows: dataclasses or dictionaries.
        argv: instead of the process's own.
        of: fields that say what a row is of. Rows of an earlier record stay, except those of what
            is measured anew; without these fields none does.

    Returns:
        The new rows.
    """
    words = sys.argv[1:] if argv is None else argv
    options = parser.parse_args(words)
    kept: list[Row] = []
    if of and options.json and options.json.exists():
        kept = json.loads(options.json.read_text())["results"]
    command = " ".join([parser.prog, *(_FOLDERS.sub("", word) for word in words)])
    found: list[Row] = []
    for made in rows(options):
        row = asdict(made) if is_dataclass(made) and not isinstance(made, type) else made
        found.append(row)
        kept = [old for old in kept if any(old.get(name) != row.get(name) for name in of)]
        print(line(row), flush=True)
        if options.json:
            write_record(options.json, command, [*kept, *found])
    return found


def in_process(
    target: str, *words: object, seconds: float | None = None, **environment: str
) -> Row:
    """What a function tells of one thing in a process of its own.

    Args:
        target: ``module.function`` of ``benchmarks``; it takes texts and returns a row.
        words: given to it.
        seconds: how long it may take.
        environment: of the process, beside this one's.

    Returns:
        The row; ``failed`` and why, where there is none.
    """
    module, _, function = target.rpartition(".")
    program = f"import sys, json; from benchmarks.{module} import {function} as told\n"
    program += "print(json.dumps(told(*sys.argv[1:])))"
    command = [sys.executable, "-c", program, *map(str, words)]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"not done in {seconds:.0f} s"}
    if done.returncode:
        last = done.stderr.strip().splitlines() or ["no reason"]
        return {"failed": next((text for text in last if "Error:" in text), last[-1])[:300]}
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return found


def line(row: Row) -> str:
    """A row in a line, without what is None or long."""
    shown = {name: value for name, value in row.items() if value is not None}
    texts = [f"{k} {v:.5g}" if isinstance(v, float) else f"{k} {v}" for k, v in shown.items()]
    return ", ".join(text for text in texts if len(text) < 300)


def write_record(path: Path, command: str, rows: Sequence[object]) -> None:
    """Write ``rows`` with the command, the number of CPUs and versions, as JSON."""
    record = {
        "command": command,
        "cpu_count": os.cpu_count(),
        "versions": versions(),
        "results": list(rows),
    }
    path.write_text(json.dumps(record, indent=1) + "\n")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that are installed, of those that figures may depend
    on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
