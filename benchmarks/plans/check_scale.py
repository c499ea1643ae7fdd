"""What ``memplan check`` takes where a lock has many models, large ones, or many writers.

    python -m benchmarks.plans.check_scale --json benchmarks/results/check_scale.json

Three parts, each with the installed program in a process of its own:

1. 300 models of 200 to 800 nodes and ten of 10,000: ``check``, and ``check --base`` after two of
   the models have changed, so that the others need no second analysis.
2. Eight processes that check one lock at once.
3. Eight processes that update one lock at once, each with models of its own: none may be lost.

Models are chains (:mod:`benchmarks.plans.analyze_scale`). Seconds are by the clock and of the CPU,
children included; memory is the most that the program had.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx

from benchmarks.plans.analyze_scale import chain
from benchmarks.record import write_record

_AT_ONCE = 8
_INTERVAL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Taken:
    """One command: how long it took, its CPU seconds, the most memory of a process of it."""

    part: str
    command: str
    models: int
    nodes: int
    processes: int
    exit_codes: tuple[int, ...]
    seconds: float
    cpu_seconds: float
    resident_set_bytes: int


def many() -> Iterator[onnx.ModelProto]:
    """300 small steps, no two of them alike."""
    for k in range(300):
        yield chain(200 + 2 * k)


def large() -> Iterator[onnx.ModelProto]:
    """Ten large ones."""
    for k in range(10):
        yield chain(10_000 + 11 * k)


@contextmanager
def project(models: Iterator[onnx.ModelProto]) -> Iterator[tuple[Path, list[str], int]]:
    """A repository with these models and their lock; the names, and the nodes of all of them."""
    with tempfile.TemporaryDirectory() as name:
        folder, names, nodes = Path(name), list[str](), 0
        for k, model in enumerate(models):
            names.append(f"m{k:03}.onnx")
            nodes += len(model.graph.node)
            onnx.save(model, folder / names[-1])
        _git(folder, "init", "-q", "-b", "main")
        _run(folder, "check", "--update", *names)
        _git(folder, "add", "-A")
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        _git(folder, *who, "commit", "-q", "-m", "models")
        yield folder, names, nodes


def one_by_one(part: str, models: Iterator[onnx.ModelProto]) -> Iterator[Taken]:
    """``check`` and ``check --base`` of a project, and of eight processes at once."""
    with project(models) as (folder, names, nodes):
        count = len(names)
        yield _taken(part, folder, count, nodes, [["check"]])
        if part == "many":
            yield _taken(part, folder, count, nodes, [["check"]] * _AT_ONCE)
        onnx.save(chain(nodes // count + 40), folder / names[0])
        onnx.save(chain(nodes // count + 80), folder / names[-1])
        yield _taken(part, folder, count, nodes, [["check", "--base", "HEAD"]])


def writers() -> Taken:
    """Eight processes that add six models each to one lock."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        names = [f"m{k:02}.onnx" for k in range(6 * _AT_ONCE)]
        for k, model in enumerate(names):
            onnx.save(chain(200 + 2 * k), folder / model)
        shares = [["check", "--update", *names[k::_AT_ONCE]] for k in range(_AT_ONCE)]
        taken = _taken("writers", folder, len(names), 0, shares)
        lock = (folder / "memplan.lock").read_text()
        assert all(f'[models."{name}"]' in lock for name in names), "an entry was lost"
        return taken


def _taken(
    part: str, folder: Path, models: int, nodes: int, commands: Sequence[Sequence[str]]
) -> Taken:
    begun, before = time.perf_counter(), os.times()
    running = [_start(folder, *command) for command in commands]
    most = 0
    while any(process.poll() is None for process in running):
        most = max([most, *(_resident(process.pid) for process in running)])
        time.sleep(_INTERVAL_SECONDS)
    codes = [process.returncode for process in running]
    seconds, after = time.perf_counter() - begun, os.times()
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    shown = " ".join(commands[0][:3]) if len(commands[0]) < 4 else "check --update MODEL..."
    found = (part, shown, models, nodes, len(commands), tuple(codes), seconds, cpu, most)
    print(found, flush=True)
    return Taken(*found)


def _resident(pid: int) -> int:
    """The most bytes that a process had so far; ``wait4`` counts those of its parent in."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(ln.split()[1]) for ln in lines if ln.startswith("VmHWM:")), 0)


def _start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    script = shutil.which("memplan", path=str(Path(sys.executable).parent))
    command = [script] if script else [sys.executable, "-m", "memplan_cli.main"]
    return subprocess.Popen([*command, *arguments], cwd=folder, stdout=subprocess.DEVNULL)


def _run(folder: Path, *arguments: str) -> None:
    assert _start(folder, *arguments).wait() == 0


def _git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True)


def main() -> None:
    """Measure all parts, and write the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path, required=True)
    asked = parser.parse_args()
    found = [*one_by_one("many", many()), *one_by_one("large", large()), writers()]
    command = "python -m benchmarks.plans.check_scale --json benchmarks/results/check_scale.json"
    write_record(asked.json, command, [asdict(taken) for taken in found])


if __name__ == "__main__":
    main()
