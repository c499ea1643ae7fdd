"""Probe stock ONNX Runtime's CPU kernels: aliases, in-place outputs and scratch, as JSON.

    python tools/probe_ort --out memplan/ops/tables/cpu.json

Every case runs in a child process group; a case that kills its child is reported and the rest
carries on in a new child.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from cases import all_cases
from shim import ShimError, compile_shim
from table import render, table

CASE_SECONDS = 60


def _child(first: int, keys: set[str] | None) -> int:
    """Measure the cases from index `first`; one JSON line before and one after each."""
    import worker
    from shim import Trace

    trace = Trace()
    for index, case in enumerate(all_cases()):
        if index < first or (keys and case.key not in keys):
            continue
        print(json.dumps({"begin": index}), flush=True)
        print(json.dumps({"index": index, **worker.measure_case(case, trace)}), flush=True)
    print(json.dumps({"end": True}), flush=True)
    return 0


def _start(library: Path, first: int, keys: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).parent), "--child", str(first)]
    command += [part for key in keys for part in ("--op", key)]
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _lines(child: subprocess.Popen[str]) -> queue.Queue[str | None]:
    lines: queue.Queue[str | None] = queue.Queue()

    def pump() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=pump, daemon=True).start()
    return lines


def _run_child(library: Path, first: int, keys: list[str], results: dict[int, dict]) -> int | None:
    """Run one child; the index of the case it died in, or None when it went to the end."""
    child = _start(library, first, keys)
    lines = _lines(child)
    current = first
    try:
        while True:
            try:
                line = lines.get(timeout=CASE_SECONDS)
            except queue.Empty:
                results[current] = {"error": f"no answer within {CASE_SECONDS} s"}
                return current
            if line is None:
                results[current] = {"error": f"the child died with status {child.wait()}"}
                return current
            message = json.loads(line)
            if "end" in message:
                return None
            if "begin" in message:
                current = message["begin"]
            else:
                results[message.pop("index")] = message
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def probe(keys: list[str]) -> dict[int, dict]:
    """Measure all cases (or those of the given op keys): case index -> result."""
    results: dict[int, dict] = {}
    with tempfile.TemporaryDirectory() as folder:
        library = compile_shim(Path(folder))
        first: int | None = 0
        while first is not None:
            died = _run_child(library, first, keys, results)
            first = None if died is None else died + 1
    return results


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
