"""Measure the tables of ``memplan/ops/tables`` with the installed ONNX Runtime.

    python tools/probe_ort --op :Relu                # of one operator, by the CPU
    python tools/probe_ort cuda --out memplan/ops/tables/cuda.json

Every case is looked at in a child process; one that kills it is reported, and the rest carries on
in a new child. A table that is there already and differs in the runtime alone stays as it is, and
the runtime is named in it: what ``git diff`` shows has changed.
"""

import argparse
import json
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from children import DIED, Probe, tell, told
from shim import ShimError
from table import kept, render

TABLES = {
    "cpu": "cpu",
    "cpu_float_types": "float_types",
    "cuda": "cuda",
    "cuda_kernels": "cuda",
    "webgpu": "webgpu",
    "webgpu_kernels": "webgpu",
}
"""The module that measures each."""


def main() -> int:
    """Parse the command line, probe, write the table."""
    parser = argparse.ArgumentParser(prog="probe_ort", description=__doc__.splitlines()[0])
    parser.add_argument("table", nargs="?", default="cpu", choices=TABLES)
    parser.add_argument("--out", type=Path, help="table to write (default: standard output)")
    parser.add_argument(
        "--op",
        action="append",
        default=[],
        metavar="DOMAIN:OP",
        help="probe only this op, e.g. :Relu (may be repeated)",
    )
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path.insert(1, str(Path(__file__).resolve().parents[2]))
    probe: Probe = import_module(TABLES[options.table]).PROBES[options.table]
    cases = probe.cases()
    if options.child is not None:
        chosen = {*options.op} or {case.key for case in cases}
        numbered = [(k, c) for k, c in enumerate(cases) if k >= options.child and c.key in chosen]
        tell(numbered, probe.opened())
        os._exit(0)  # a provider's threads may outlive the interpreter, and then end it
    try:
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, **probe.environment(Path(folder))}
            results = told([*sys.argv, "--child"], environment)
    except ShimError as error:
        print(f"probe_ort: {error}", file=sys.stderr)
        return 2
    for index, result in sorted(results.items()):
        died = DIED in result and f"the child died with status {result[DIED]}"
        for note in filter(None, [died, result.get("error"), *result.get("notes", [])]):
            print(f"{cases[index].key}/{cases[index].label}: {note}", file=sys.stderr)
    found = probe.table(cases, results)
    if options.out is None:
        sys.stdout.write(render(found))
        return 0
    if options.out.exists():
        found = kept(json.loads(options.out.read_text(encoding="utf-8")), found)
    options.out.write_text(render(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
