"""Probe stock ONNX Runtime's CPU kernels: aliases, in-place outputs and scratch, as JSON.

    python tools/probe_ort --out memplan/ops/tables/cpu.json

A case that kills its child process is reported, and the rest carries on in a new child.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from cases import all_cases
from children import DIED, tell, told
from shim import ShimError, compile_shim
from table import render, table


def probe(keys: list[str]) -> dict[int, dict]:
    """Measure all cases (or those of the given op keys): case index -> result."""
    command = [str(Path(__file__).parent), *(part for key in keys for part in ("--op", key))]
    with tempfile.TemporaryDirectory() as folder:
        library = compile_shim(Path(folder))
        results = told([*command, "--child"], {**os.environ, "LD_PRELOAD": str(library)})
    for result in results.values():
        if DIED in result:
            result["error"] = f"the child died with status {result.pop(DIED)}"
    return results


def _child(first: int, keys: set[str] | None) -> int:
    import worker
    from shim import Trace

    trace = Trace()
    cases = [
        (index, case)
        for index, case in enumerate(all_cases())
        if index >= first and not (keys and case.key not in keys)
    ]
    tell(cases, lambda case: worker.measure_case(case, trace))
    return 0


def main() -> int:
    """Parse the command line, probe, write the table."""
    parser = argparse.ArgumentParser(prog="probe_ort", description=__doc__.splitlines()[0])
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
    if options.child is not None:
        return _child(options.child, set(options.op) or None)
    try:
        results = probe(options.op)
    except ShimError as error:
        print(f"probe_ort: {error}", file=sys.stderr)
        return 2
    cases = all_cases()
    for index, result in sorted(results.items()):
        for note in [result.get("error"), *result.get("notes", [])]:
            if note:
                print(f"{cases[index].key}/{cases[index].label}: {note}", file=sys.stderr)
    text = render(table(cases, results))
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
