"""Training graphs: our search, the greedy planner and the published peers on one memory model.

Every strategy of memplan gets the same problem: the file as it is (no offline fusion), a tuned
session, and seconds per node by the roofline of one device. A budget is a share of the dynamic
peak, workspace included; weights and inputs are on top of both. Every plan, whoever made it, is
written as a model in memory and simulated by code that knows nothing of the planners.

    python -m benchmarks.plans.training_graphs --models DIR/*.onnx --budget 70% --budget 50% \\
        --budget 30% --seconds 10 --json results.json
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from benchmarks.plans.instances import VerificationError
from benchmarks.plans.knapsack import Knapsack
from benchmarks.record import arguments, run
from memplan.api.rewrite.check_file import require_as_planned, sound_timeline
from memplan.errors import ModelError, UsageError
from memplan.ir.phases import differentiated
from memplan.ops.cost import DEVICES, node_costs
from memplan.planning.apply import apply_plan
from memplan.planning.encode_problem import within
from memplan.planning.planner import PlanRequest, Prepared, as_plan, prepare
from memplan.shapes.fold import small_constants
from memplan.simulate.opened import OpenModel, open_model
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import simulate
from memplan.solver.problem import Problem
from memplan.solver.search.warm_up import warm_up
from memplan.solver.strategies.builtin import parse_strategy
from memplan.solver.strategies.spec import build, split_spec
from memplan.solver.strategy import Outcome, Strategy
from memplan.units import parse_size

STRATEGIES = (
    "auto",
    "greedy",
    "none",
    "segments",
    "knapsack",
    "knapsack{cut=0}",
    "min-cut",
    "mirror",
    "mirror{function=kind}",
    "speed",
    "memory",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One row. Percentages of the step without recomputation; bytes are dynamic with workspace.

    ``floor_bytes`` is the certified floor: below it no order and no recomputation can go.
    ``bound_percent`` and ``bound_kind`` are None for strategies that certify nothing. ``refusal``:
    why the strategy cannot work on the graph.
    """

    graph: str
    nodes: int
    device: str
    budget: str
    budget_bytes: int
    original_peak_bytes: int
    floor_bytes: int
    strategy: str
    fits: bool = False
    extra_cost_percent: float = 0.0
    peak_bytes: int
    recomputed_nodes: int = 0
    planning_seconds: float = 0.0
    bound_percent: float | None = None
    bound_kind: str | None = None
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """A graph, ready for any budget; ``peak`` is its dynamic peak with workspace."""

    name: str
    model: OpenModel
    prepared: Prepared
    peak: int


def peer_or_strategy(text: str) -> Strategy:
    """``knapsack{option=value,...}``, which memplan's search has nothing to learn from and which is
    no part of memplan, or a strategy that memplan lists.

    Raises:
        UsageError: there is no such strategy, or it has no such option.
    """
    spec = split_spec(text)
    if spec is None or spec.name != Knapsack.name:
        return parse_strategy(text)
    return cast(Strategy, build(Knapsack, spec, "strategy"))


def load(path: Path, device: str) -> Loaded:
    """Read one file and encode it with the costs of ``device``.

    Raises:
        ModelError: the model cannot be read or a shape stays unknown.
    """
    model = open_model(path)
    session = session_kind("tuned", "cpu")
    request = PlanRequest(
        graph=model.graph,
        session=session,
        budget_bytes=0,
        estimate=lambda graph: node_costs(graph, DEVICES[device], "cpu"),
        values=small_constants(model.prepared.bound.graph),
        forward=model.phases.forward,
        differentiated=differentiated(model.graph, model.phases),
    )
    timeline = simulate(model.graph, session)
    peak = timeline.peak_with_workspace_bytes - timeline.resident_bytes
    return Loaded(path.stem, model, prepare(request), peak)


def run_point(loaded: Loaded, budget: str, name: str, seconds: float, device: str) -> Result:
    """Plan and verify one graph at one budget with one strategy.

    Raises:
        UsageError: no such strategy.
        VerificationError: the plan does not hold; nothing is to be reported.
    """
    room = parse_size(budget).resolve(loaded.peak)
    problem = within(loaded.prepared.problem, room)
    strategy = peer_or_strategy(name)
    begin = time.perf_counter()
    point = Result(
        graph=loaded.name,
        nodes=len(problem.order),
        device=device,
        budget=budget,
        budget_bytes=room,
        original_peak_bytes=loaded.peak,
        floor_bytes=loaded.prepared.floor.with_workspace,
        strategy=name,
        peak_bytes=loaded.peak,
    )

    try:
        outcome = strategy.solve(problem, seconds)
    except UsageError as error:
        return replace(point, refusal=error.message, planning_seconds=time.perf_counter() - begin)
    spent = time.perf_counter() - begin
    decision, base = outcome.decision, problem.base_cost
    verify(loaded, problem, outcome, strategy.name)
    certified = name.startswith(("auto", "search"))
    return replace(
        point,
        fits=decision.feasible,
        extra_cost_percent=100 * decision.extra_cost / base,
        peak_bytes=decision.peak,
        recomputed_nodes=len(decision.sequence) - len(problem.order),
        planning_seconds=spent,
        bound_percent=100 * outcome.bound_seconds / base if certified else None,
        bound_kind=outcome.bound_kind if certified else None,
    )


def verify(loaded: Loaded, problem: Problem, outcome: Outcome, strategy: str) -> None:
    """Write the plan as a model, simulate that, and compare peak and cost with what was claimed.

    Raises:
        MemplanError: the model breaks a condition that every rewritten model must keep.
        VerificationError: the peak, its fitting or the cost is not as claimed.
    """
    prepared, decision = loaded.model.prepared, outcome.decision
    plan = as_plan(loaded.prepared, problem, outcome, strategy, 0.0)
    rewritten = apply_plan(prepared.proto, plan, prepared.dims)
    timeline = sound_timeline(rewritten, prepared, plan, loaded.prepared.request.session)
    require_as_planned(plan, timeline)
    peak = timeline.peak_with_workspace_bytes - timeline.resident_bytes
    if peak != decision.peak or decision.feasible != (peak <= problem.budget):
        raise VerificationError(f"{strategy} claims {decision.peak:,} B; simulated: {peak:,} B")
    cost = float(problem.arrays.cost[list(plan.sequence)].sum()) - problem.base_cost
    if abs(cost - decision.extra_cost) > 1e-9 * problem.base_cost:
        raise VerificationError(f"{strategy} claims {decision.extra_cost} s more; it is {cost} s")


def rows(options: argparse.Namespace) -> Iterator[Result]:
    """The points one by one; a budget below the floor is none."""
    warm_up()
    for path in options.models:
        try:
            loaded = load(path, options.device)
        except ModelError as error:
            print(f"{path.stem}: left out: {error}", file=sys.stderr)
            continue
        floor = loaded.prepared.floor.with_workspace
        for budget in options.budget:
            if parse_size(budget).resolve(loaded.peak) < floor:
                share = 100 * floor / loaded.peak
                print(f"{loaded.name}: {budget} is below the floor, {share:.2f}%", file=sys.stderr)
                continue
            for name in options.strategy or STRATEGIES:
                yield run_point(loaded, budget, name, options.seconds, options.device)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = arguments("plans.training_graphs", __doc__)
    parser.add_argument("--models", type=Path, nargs="+", required=True, help="*.onnx")
    parser.add_argument("--budget", action="append", required=True, help="such as 50%%, repeatable")
    parser.add_argument("--strategy", action="append", default=[], help="repeatable; default: all")
    parser.add_argument("--seconds", type=float, default=10.0, help="planning, per point")
    parser.add_argument("--device", default="h200", choices=sorted(DEVICES), help="cost profile")
    run(parser, rows, argv)


if __name__ == "__main__":
    main()
