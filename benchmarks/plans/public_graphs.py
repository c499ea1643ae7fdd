"""The public rematerialization graphs: plan, certify, verify.

What they are, and by which accounting: :mod:`benchmarks.plans.instances`. Sizes and durations are
in the units of the files.

    python -m benchmarks.plans.public_graphs --instances DIR/*.json --ratio 0.8 --order fixed \\
        --seconds 10 --json results.json
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.plans.instances import Instance, budget_of, load_instance, verify
from benchmarks.record import Row, arguments, run
from memplan.deadline import Deadline
from memplan.solver.build import Output, ProblemBuilder
from memplan.solver.evaluate import evaluate
from memplan.solver.problem import Problem
from memplan.solver.search.warm_up import warm_up
from memplan.solver.strategies.portfolio import PortfolioOptions, solve_portfolio


def to_problem(instance: Instance, ratio: float, fixed: bool = True) -> Problem:
    """The planning problem for a budget of ``ratio`` times the peak of the input order.

    No views, no in-place outputs. The runtime holds unread results to the end; in the papers they
    count at their own step only: every output is fleeting. With ``fixed`` no node may move.
    """
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


def run_point(path: Path, ratio: float, order: str, seconds: float, sequences: bool = False) -> Row:
    """Plan, verify and certify one instance at one ratio; ``order`` is ``fixed`` (first
    computations stay) or ``free``, for the search and for the bound. Percentages are of the
    duration without recomputation; the plan's node ids are in the row if ``sequences``.

    Raises:
        VerificationError: the plan does not hold; nothing is to be reported.
    """
    instance, fixed = load_instance(path), order == "fixed"
    problem = to_problem(instance, ratio, fixed)
    warm_up()  # loading (or, once, compiling) the planner is not planning
    start = time.perf_counter()
    options = PortfolioOptions(order=not fixed, gap=0.0)
    decision, bound = solve_portfolio(problem, Deadline(seconds), options)
    planning = time.perf_counter() - start
    sequence = [instance.ids[int(node)] for node in decision.sequence] if decision.feasible else []
    cost = None
    if decision.feasible:
        cost = verify(instance, ratio, sequence, fixed=fixed).extra_cost_percent
    certified = bound.seconds != float("inf")
    return {
        "instance": instance.name,
        "ratio": ratio,
        "order": order,
        "feasible": decision.feasible,
        "extra_cost_percent": cost,
        "bound_percent": 100 * bound.seconds / problem.base_cost if certified else None,
        "planning_seconds": planning,
        "sequence": sequence if sequences else None,
    }


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """The points one by one."""
    for path in options.instances:
        for ratio in options.ratio:
            yield run_point(path, ratio, options.order, options.seconds, options.sequences)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = arguments("plans.public_graphs", __doc__)
    parser.add_argument("--instances", type=Path, nargs="+", required=True, help="*.json")
    parser.add_argument("--ratio", type=float, action="append", required=True, help="repeatable")
    parser.add_argument("--order", choices=("fixed", "free"), default="fixed")
    parser.add_argument("--seconds", type=float, default=10.0, help="planning, per point")
    parser.add_argument("--sequences", action="store_true", help="plans go into the record")
    run(parser, rows, argv)


if __name__ == "__main__":
    main()
