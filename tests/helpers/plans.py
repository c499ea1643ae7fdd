"""Plans by every strategy, and what a rewritten model does, for the tests that run them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx

from memplan.api.rewrite.check_file import require_as_planned, sound_timeline
from memplan.errors import InfeasibleError, UsageError
from memplan.ir.graph import Graph
from memplan.ir.phases import differentiated
from memplan.ops.cost import DEVICES, node_costs
from memplan.planning.apply import apply_plan
from memplan.planning.plan import Plan
from memplan.planning.planner import PlanRequest, Prepared, make_plan, prepare
from memplan.runtime.messages import Measurement, RunRequest
from memplan.runtime.profiled import profiled_runs
from memplan.runtime.session_options import session_options
from memplan.shapes.fold import small_constants
from memplan.shapes.prepare import PreparedModel
from memplan.simulate.opened import OpenModel
from memplan.simulate.session import SessionKind, session_kind
from memplan.simulate.timeline import Timeline, simulate
from memplan.solver.strategies.builtin import BUILT_IN, parse_strategy

TUNED = session_kind("tuned")


def estimate(graph: Graph) -> list[float]:
    """Costs that no machine changes."""
    return node_costs(graph, DEVICES["cpu"], "cpu")


def prepared_for(model: OpenModel, share: float) -> tuple[Prepared, int]:
    """The request for a budget ``share`` of the way from the floor to the peak."""
    peak = simulate(model.graph, TUNED).peak_with_workspace_bytes
    values = small_constants(model.prepared.bound.graph)
    request = PlanRequest(model.graph, TUNED, peak, estimate, values)
    first = prepare(request)
    floor = first.resident_bytes + first.floor.with_workspace
    budget = int(floor + share * (peak - floor))
    return prepare(PlanRequest(model.graph, TUNED, budget, estimate, values)), budget


def checked(
    before: PreparedModel, rewritten: onnx.ModelProto, plan: Plan, session: SessionKind = TUNED
) -> Timeline:
    """The simulation of a file that is sound and takes what its plan says."""
    timeline = sound_timeline(rewritten, before, plan, session)
    require_as_planned(plan, timeline)
    return timeline


def plan_and_apply(model: OpenModel, share: float) -> tuple[onnx.ModelProto, Plan, Timeline]:
    """A few rounds of search for such a budget, applied and verified."""
    request, _ = prepared_for(model, share)
    plan = make_plan(request, parse_strategy("search{iterations=6,certify=0}"), 10.0)
    rewritten = apply_plan(model.prepared.proto, plan, model.prepared.dims)
    return rewritten, plan, checked(model.prepared, rewritten, plan)


# All that are built in, and some with options that change what they do.
OPTIONS = ("segments{count=3}", "min-cut{ban=0}", "mirror{function=kind,test=0}")
NAMED = (*(n for n in BUILT_IN if n not in ("search", "list")), *OPTIONS, "list{names=*1*}")


AUTO = "search{certify=0}"


SECONDS = 1.5


@dataclass(frozen=True)
class Task:
    """A model to plan: its floor and its peak, and the plans made so far."""

    model: OpenModel
    prepared: Prepared
    floor: int
    peak: int
    plans: dict[tuple[str, int], Plan | None] = field(default_factory=dict)

    def budget(self, share: float) -> int:
        """``share`` of the way from the floor to the peak."""
        return int(self.floor + share * (self.peak - self.floor))

    def plan(self, strategy: str, budget: int) -> Plan | None:
        """What ``strategy`` makes of the budget; None: no plan, or it cannot work here."""
        key = strategy, budget
        if key not in self.plans:
            self.plans[key] = self._plan(strategy, budget)
        return self.plans[key]

    def _plan(self, strategy: str, budget: int) -> Plan | None:
        request = replace(self.prepared.request, budget_bytes=budget)
        try:
            prepared = replace(self.prepared, request=request)
            return make_plan(prepared, parse_strategy(strategy), SECONDS)
        except (InfeasibleError, UsageError):
            return None


def task_of(model: OpenModel) -> Task:
    """A task; every fifth forward tensor is marked to be kept, for ``collection``."""
    peak = simulate(model.graph, TUNED).peak_with_workspace_bytes
    values = small_constants(model.prepared.bound.graph)
    prepared = prepare(
        PlanRequest(
            model.graph,
            TUNED,
            peak,
            estimate,
            values,
            forward=model.phases.forward,
            differentiated=differentiated(model.graph, model.phases),
        )
    )
    labels = prepared.problem.labels
    if labels is not None:
        marked = np.arange(len(labels.names)) % 5 == 0
        labels = replace(labels, marked=marked)
        prepared = replace(prepared, problem=replace(prepared.problem, labels=labels))
    return Task(model, prepared, prepared.resident_bytes + prepared.floor.with_workspace, peak)


def outputs_of(
    model: onnx.ModelProto, feeds: Any, dims: Mapping[str, int] | None = None
) -> tuple[list[np.ndarray], Measurement]:
    """What a tuned session computes on one thread, and what it measured."""
    kept: list[np.ndarray] = []
    options, request = session_options("tuned", dims or {}), RunRequest(threads=1)

    def keep(outputs: list[Any]) -> None:
        kept.extend(output.copy() for output in outputs)

    return kept, profiled_runs(model.SerializeToString(), request, feeds, options, keep)
