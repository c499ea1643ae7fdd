"""Probe the installed ONNX Runtime again, and say what changed since the tables were written.

    python tools/probe_ort/changes.py            # says what changed; exit code 1 if anything did
    python tools/probe_ort/changes.py --write    # and writes the new tables, or that none is new

For a new version of the runtime. All three tables of ``memplan/ops/tables`` are measured anew: the
CPU kernels, and over the stub of ``tests/gpu`` what CUDA kernels take and which there are. A change
is told per operator, line by line. Takes minutes and needs a C compiler on Linux.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from table import render

HERE = Path(__file__).resolve().parent
TABLES = HERE.parent.parent / "memplan" / "ops" / "tables"
PROBES = {
    "cpu.json": ["."],
    "cuda.json": ["cuda.py"],
    "cuda_kernels.json": ["cuda.py", "--kernels"],
}
# What a table was measured on, and which other runtimes gave the same.
_RUNTIME, _SAME_ON = "runtime", "same_on"


def changes(name: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """What one of two tables has alone, line by line: an operator, or a case, is one line."""
    old, new = set(_lines(before)), set(_lines(after))
    for line in sorted(old ^ new, key=lambda line: (line, line in new)):
        yield f"{name}: {'+' if line in new else '-'} {line}"


def _lines(table: dict[str, Any]) -> Iterator[str]:
    for field, value in table.items():
        if isinstance(value, dict):
            yield from (f"{field}: {key}: {json.dumps(item)}" for key, item in value.items())
        elif field not in (_RUNTIME, _SAME_ON):
            items = value if isinstance(value, list) else [value]
            yield from (f"{field}: {json.dumps(item)}" for item in items)


def same_on(table: dict[str, Any], runtime: str) -> dict[str, Any]:
    """The table, which was also measured on ``runtime`` and is the same there."""
    measured = {table[_RUNTIME], *table.get(_SAME_ON, ()), runtime} - {table[_RUNTIME]}
    rows = [(key, value) for key, value in table.items() if key != _SAME_ON]
    place = [key for key, _ in rows].index(_RUNTIME) + 1
    return dict([*rows[:place], (_SAME_ON, sorted(measured)), *rows[place:]])


def measure(table: str, target: Path) -> None:
    """Run the probe that writes ``table``; raises CalledProcessError, with what it said.

    The runtime's own warnings about odd cases are expected, and shown only when the probe fails.
    """
    script, *words = PROBES[table]
    subprocess.run(
        [sys.executable, str(HERE / script), *words, "--out", str(target)],
        check=True,
        capture_output=True,
        text=True,
    )


def main() -> int:
    """Measure, compare, print; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="replace the tables by the new ones")
    parser.add_argument("--table", action="append", choices=list(PROBES), help="instead of all")
    options = parser.parse_args()
    found: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for table in options.table or PROBES:
            target = Path(folder) / table
            try:
                measure(table, target)
            except subprocess.CalledProcessError as error:
                sys.stderr.write(error.stderr)
                print(f"{table} was not measured: exit code {error.returncode}", file=sys.stderr)
                return 2
            before, after = (
                json.loads(path.read_text(encoding="utf-8")) for path in (TABLES / table, target)
            )
            changed = list(changes(table, before, after))
            if options.write:
                kept = render(after if changed else same_on(before, after[_RUNTIME]))
                (TABLES / table).write_text(kept, encoding="utf-8")
            found += changed
    for change in found:
        print(change)
    print(f"{len(found)} changes" if found else "nothing changed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
