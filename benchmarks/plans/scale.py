"""How planning, ``analyze`` and ``check`` grow with the graph.

    python -m benchmarks.plans.scale --layers 24 --layers 300 --ratio 0.5 --seconds 5 --json FILE
    python -m benchmarks.plans.scale --analyze 1000 --analyze 100000 --analyze MODEL --json FILE
    python -m benchmarks.plans.scale --check 300x500 --check 10x10000 --json FILE

Graphs are those of ``benchmarks/nets/generated.py``. Time of an analysis is CPU time, best of some
runs; each graph is analyzed in a process of its own, as the largest one decides the memory of a
process. Files may be measured beside them. The C++ of ONNX runs in a child process
(:mod:`memplan.proto.native`), which CPU time leaves out and elapsed time has.

Check: as many chains of about as many nodes in one lock: ``check``, and ``check --base`` after two
of them have changed, by the installed program in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from benchmarks.nets.generated import PER_LAYER, chain, transformer
from benchmarks.plans.instances import Instance, verify
from benchmarks.record import Row, arguments, in_process, run

# --- Planning -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Result:
    """One row. ``first_seconds``: until the first plan that fits."""

    layers: int
    nodes: int
    ratio: float
    feasible: bool
    extra_cost_percent: float
    first_seconds: float | None
    planning_seconds: float
    recomputed_nodes: int
    resident_set_bytes: int


def run_point(instance: Instance, layers: int, ratio: float, seconds: float) -> Result:
    """Plan one graph at one ratio; the plan is verified independently."""
    # Not above: what a file costs is measured in a process that has imported little.
    from benchmarks.plans.public_graphs import to_problem
    from memplan.deadline import Deadline
    from memplan.solver.search.warm_up import warm_up
    from memplan.solver.strategies.portfolio import PortfolioOptions, solve_portfolio

    warm_up()
    problem = to_problem(instance, ratio, fixed=False)
    first: list[float] = []
    started = time.perf_counter()

    def tell(peak: int, extra: float) -> None:
        del peak, extra
        first.append(time.perf_counter() - started)

    decision, _ = solve_portfolio(problem, Deadline(seconds), PortfolioOptions(certify=False), tell)
    spent = time.perf_counter() - started
    sequence = [int(node) for node in decision.sequence]
    if decision.feasible:
        verify(instance, ratio, sequence, fixed=False)
    return Result(
        layers,
        len(instance.ids),
        ratio,
        decision.feasible,
        100 * decision.extra_cost / problem.base_cost,
        first[0] if first else None,
        spent,
        len(sequence) - len(instance.ids),
        1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    )


# --- Analysis -----------------------------------------------------------------------------------

CHAIN = "chain"


@dataclass(frozen=True, slots=True)
class Cost:
    """One graph: CPU seconds to import onnx, to parse the file and to analyze it (the JSON
    included), how long the latter took by the clock, and the most memory that the process had.
    ``graph`` is ``chain``, or the name of a file."""

    graph: str
    nodes: int
    import_seconds: float
    parse_seconds: float
    analyze_seconds: float
    elapsed_seconds: float
    resident_set_bytes: int

    @property
    def ratio(self) -> float:
        """Analysis against what every program that reads the file must spend."""
        return self.analyze_seconds / (self.import_seconds + self.parse_seconds)


def measure_graph(graph: str, runs: int = 5) -> Cost:
    """The cost of a chain of a number of nodes, or of a file, in a process of its own."""
    with TemporaryDirectory() as folder:
        path = Path(graph)
        if graph.isdecimal():
            path = Path(folder) / f"{CHAIN}.onnx"
            onnx.save(chain(int(graph)), path)
        return Cost(**in_process("plans.scale.cost_of", path, runs))


def cost_of(name: str, count: str) -> Row:
    """The cost of a file, in a process that has imported libraries and done nothing else."""
    imported = time.process_time()
    from memplan.api.analysis import analyze
    from memplan.runtime.resident_set import resident_bytes

    path, parsing, analyzing, elapsed, nodes = Path(name), [], [], [], 0
    for _ in range(int(count)):
        started = time.process_time()
        nodes = len(onnx.load(path, load_external_data=False).graph.node)
        parsed, clock = time.process_time(), time.perf_counter()
        json.dumps(analyze(path).as_json())
        parsing.append(parsed - started)
        analyzing.append(time.process_time() - parsed)
        elapsed.append(time.perf_counter() - clock)
    best = (min(parsing), min(analyzing), min(elapsed))
    # Not from getrusage, which counts the parent's in.
    return asdict(Cost(path.stem, nodes, imported, *best, resident_bytes("VmHWM")))


def slope(found: Sequence[Cost]) -> float:
    """By which power of the nodes the CPU time of chains grows: least squares through the
    logarithms."""
    points = [(math.log(c.nodes), math.log(c.analyze_seconds)) for c in found if c.graph == CHAIN]
    across = sum(x for x, _ in points) / len(points)
    up = sum(y for _, y in points) / len(points)
    spread = sum((x - across) ** 2 for x, _ in points)
    return sum((x - across) * (y - up) for x, y in points) / spread


# --- Check --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Taken:
    """One command: how long it took, its CPU seconds, the most memory of its process."""

    command: str
    models: int
    nodes: int
    exit_code: int
    seconds: float
    cpu_seconds: float
    resident_set_bytes: int


def checks(models: int, nodes: int) -> Iterator[Taken]:
    """``check`` and ``check --base`` of a repository with so many chains and their lock."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        names = [f"m{k:03}.onnx" for k in range(models)]
        for k, model in enumerate(names):
            onnx.save(chain(nodes + PER_LAYER * (k - models // 2)), folder / model)
        taken(folder, models, nodes, "check", "--update", *names)
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "models"]):
            subprocess.run(["git", *words], cwd=folder, check=True)
        yield taken(folder, models, nodes, "check")
        for model in (names[0], names[-1]):
            onnx.save(chain(2 * nodes), folder / model)
        yield taken(folder, models, nodes, "check", "--base", "HEAD")


def taken(folder: Path, models: int, nodes: int, *command: str) -> Taken:
    """What a command of the installed program takes."""
    program = shutil.which("memplan", path=str(Path(sys.executable).parent))
    words = [program] if program else [sys.executable, "-m", "memplan_cli.main"]
    begun, before, most = time.perf_counter(), os.times(), 0
    running = subprocess.Popen([*words, *command], cwd=folder, stdout=subprocess.DEVNULL)
    while running.poll() is None:
        # Not from wait4, which counts the parent's in.
        lines = Path(f"/proc/{running.pid}/status").read_text().splitlines()
        most = next((1024 * int(ln.split()[1]) for ln in lines if ln.startswith("VmHWM:")), most)
        time.sleep(0.02)
    seconds, after = time.perf_counter() - begun, os.times()
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    shown = " ".join(command[:3])
    return Taken(shown, models, nodes, running.returncode, seconds, cpu, most)


# --- Command line -------------------------------------------------------------------------------


def rows(options: argparse.Namespace) -> Iterator[object]:
    """What was asked for, one by one."""
    for layers in options.layers:
        instance = transformer(layers)
        for ratio in options.ratio:
            yield run_point(instance, layers, ratio, options.seconds)
    found = []
    for graph in options.analyze:
        found.append(measure_graph(graph))
        yield {**asdict(found[-1]), "ratio": found[-1].ratio}
    if sum(cost.graph == CHAIN for cost in found) > 1:
        yield {"log_log_slope": slope(found)}
    for size in options.check:
        models, _, nodes = size.partition("x")
        yield from checks(int(models), int(nodes))


if __name__ == "__main__":
    parser = arguments("plans.scale", __doc__)
    parser.add_argument("--layers", type=int, action="append", default=[], help="repeatable")
    parser.add_argument("--ratio", type=float, action="append", default=[], help="repeatable")
    parser.add_argument("--seconds", type=float, default=5.0, help="planning, per point")
    parser.add_argument("--analyze", action="append", default=[], metavar="NODES|FILE")
    parser.add_argument("--check", action="append", default=[], metavar="MODELSxNODES")
    run(parser, rows)
