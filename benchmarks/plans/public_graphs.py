"""The public rematerialization graphs: plan, certify, verify.

What they are, and by which accounting: :mod:`benchmarks.plans.instances`. Sizes and durations are
in the units of the files.

    python -m benchmarks.plans.public_graphs --instances DIR --ratio 0.8 --order fixed \\
        --seconds 10 --json results.json
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.plans.instances import Instance, budget_of, load_instance, short_name, verify
from benchmarks.record import write_record

if TYPE_CHECKING:
    from memplan.solver.problem import Decision, Problem

# Cost and bound are equal below this difference in percent points.
_CLOSED = 1e-7


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the report. Percentages are of the duration without recomputation."""

    instance: str
    ratio: float
    order: str
    feasible: bool
    extra_cost_percent: float | None
    bound_percent: float | None
    planning_seconds: float
    sequence: list[int]


# --- Planning --------------------------------------------------------------------------------


def to_problem(instance: Instance, ratio: float, fixed: bool = True) -> Problem:
    """The planning problem for a budget of ``ratio`` times the peak of the input order.

    No views, no in-place outputs. The runtime holds unread results to the end; in the papers they
    count at their own step only: every output is fleeting. With ``fixed`` no node may move.
    """
    import numpy as np

    from memplan.solver.build import Output, ProblemBuilder
    from memplan.solver.evaluate import evaluate
    from memplan.solver.problem import Problem

    n = len(instance.ids)
    each = np.arange(n, dtype=np.int64)
    graph = ProblemBuilder()
    for node, read in enumerate(instance.predecessors):
        graph.add_tensor(instance.sizes[node], maker=node)
        graph.add_node(instance.durations[node], read, [Output(node, fleeting=True)])
    arrays = graph.build()
    peak = int(evaluate(arrays, each).total.max(initial=0))
    return Problem(
        arrays,
        order=each,
        budget=budget_of(ratio, peak),
        start=each,
        protected=np.zeros(n, np.bool_),
        movable=np.full(n, not fixed, np.bool_),
    )


def solve_instance(problem: Problem, order: str, seconds: float) -> tuple[Decision, float]:
    """Plan within ``seconds``; ``order`` is ``fixed`` (first computations stay) or ``free``.

    Returns the plan and the bound on its extra cost that was certified beside the search, in
    seconds: for the order kept, or for any order.
    """
    from memplan.deadline import Deadline
    from memplan.solver.strategies.portfolio import PortfolioOptions, solve_portfolio

    fixed = order == "fixed"
    decision, bound = solve_portfolio(
        problem, Deadline(seconds), PortfolioOptions(order=not fixed, gap=0.0)
    )
    return decision, bound.seconds


def run_point(path: Path, ratio: float, order: str, seconds: float) -> Result:
    """Plan, verify and certify one instance at one ratio.

    Raises:
        VerificationError: the plan does not hold; nothing is to be reported.
    """
    from memplan.solver.search.warm_up import warm_up

    instance = load_instance(path)
    problem = to_problem(instance, ratio, order == "fixed")
    warm_up()  # loading (or, once, compiling) the planner is not planning
    start = time.perf_counter()
    decision, bound = solve_instance(problem, order, seconds)
    planning = time.perf_counter() - start
    sequence = [instance.ids[int(node)] for node in decision.sequence] if decision.feasible else []
    cost = None
    if decision.feasible:
        cost = verify(json.loads(path.read_text()), ratio, order, sequence).extra_cost_percent
    return Result(
        instance.name,
        ratio,
        order,
        decision.feasible,
        cost,
        None if bound == float("inf") else 100 * bound / problem.base_cost,
        planning,
        sequence,
    )


# --- Command line -----------------------------------------------------------------------------


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.plans.public_graphs", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--instances", type=Path, required=True, help="folder with *.json")
    parser.add_argument("--ratio", type=float, action="append", required=True, help="repeatable")
    parser.add_argument("--only", action="append", default=[], help="instance name, repeatable")
    parser.add_argument("--order", choices=("fixed", "free"), default="fixed")
    parser.add_argument("--seconds", type=float, default=10.0, help="planning, per point")
    parser.add_argument("--json", type=Path, required=True, help="where the results go")
    parser.add_argument("--record", type=Path, help="without sequences, with versions and command")
    return parser.parse_args(argv)


def command_of(options: argparse.Namespace) -> str:
    """The command without paths."""
    return " ".join(
        [
            "python -m benchmarks.plans.public_graphs --instances DIR --json FILE",
            *(f"--ratio {ratio:g}" for ratio in options.ratio),
            *(f"--only {name}" for name in options.only),
            f"--order {options.order} --seconds {options.seconds:g}",
        ]
    )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def chosen_files(folder: Path, only: Sequence[str]) -> list[Path]:
    """The instance files, small ones first; ``only`` names some (case and dashes do not matter).

    Raises:
        ValueError: no file has such a name.
    """
    files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_size)
    if not only:
        return files
    names = {_plain(short_name(path)): path for path in files}
    unknown = [name for name in only if _plain(name) not in names]
    if unknown:
        raise ValueError(f"no instance {unknown[0]}; there are: {', '.join(sorted(names))}")
    return [names[_plain(name)] for name in only]


def row(result: Result) -> str:
    """One line of the table."""
    extra, certified = result.extra_cost_percent, result.bound_percent
    cost = "-" if extra is None else f"{extra:.3f}"
    bound = "infeasible" if certified is None else f"{certified:.3f}"
    closed = None not in (extra, certified) and abs((extra or 0) - (certified or 0)) < _CLOSED
    return (
        f"{result.instance:<12}{result.ratio:>6.2f} {result.order:<6}{cost:>10}{bound:>10}"
        f"{result.planning_seconds:>10.2f}"
        f"  {'optimal' if closed else '' if result.feasible else 'no plan'}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the points one by one; results are written after each."""
    options = arguments(argv)
    results: list[Result] = []
    print(f"{'instance':<12}{'ratio':>6} {'order':<6}{'extra %':>10}{'bound %':>10}{'plan s':>10}")
    for path in chosen_files(options.instances, options.only):
        for ratio in options.ratio:
            result = run_point(path, ratio, options.order, options.seconds)
            results.append(result)
            print(row(result), flush=True)
            options.json.write_text(json.dumps([asdict(item) for item in results]))
            if options.record is not None:
                rows = [{**asdict(item), "sequence": None} for item in results]
                write_record(options.record, command_of(options), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
