"""Probe the installed ONNX Runtime again, and say what changed since the tables were written.

    python tools/probe_ort/changes.py            # says what changed; exit code 1 if anything did
    python tools/probe_ort/changes.py --write    # and writes the new tables, or that none is new

For a new version of the runtime. All three tables of ``memplan/ops/tables`` are measured anew: the
CPU kernels, and over the stub of ``tests/gpu`` what CUDA kernels take and which there are. A change
is told per operator: what memplan would predict differently for it. Takes minutes and needs a C
compiler on Linux.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TABLES = HERE.parent.parent / "memplan" / "ops" / "tables"
PROBES = {
    "cpu.json": ["."],
    "cuda.json": ["cuda.py"],
    "cuda_kernels.json": ["cuda.py", "--kernels"],
}
# What a row of `scratch` was measured for; the rest of the row is what came out.
_CASE = ("op", "case", "opset", "threads")
# What a table was measured on, and which other runtimes gave the same.
_RUNTIME, _SAME_ON = "runtime", "same_on"


@dataclass(frozen=True, slots=True)
class Change:
    """An entry of a table that is no longer what it was; None where it was not there."""

    table: str
    field: str
    entry: str
    before: Any
    after: Any

    def __str__(self) -> str:
        told = f"{_shown(self.before)} -> {_shown(self.after)}"
        return f"{self.table}: {self.field}: {self.entry}: {told}"


def _shown(value: Any) -> str:
    return "absent" if value is None else json.dumps(value)


def entries(value: Any) -> dict[str, Any]:
    """The content of one field by what it speaks of: operators, cases, or the field as a whole."""
    if isinstance(value, dict):
        return {str(key): item for key, item in value.items()}
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return dict.fromkeys(value, "listed")
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return {
            ", ".join(f"{row[key]}" for key in _CASE if key in row): {
                key: item for key, item in row.items() if key not in _CASE
            }
            for row in value
        }
    return {"": value}


def changes(table: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[Change]:
    """Every entry that differs between two tables, field by field."""
    for field in sorted({*before, *after} - {_RUNTIME, _SAME_ON}):
        old, new = entries(before.get(field, {})), entries(after.get(field, {}))
        for entry in sorted({*old, *new}):
            if old.get(entry) != new.get(entry):
                yield Change(table, field, entry, old.get(entry), new.get(entry))


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
    from table import render

    found: list[Change] = []
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
