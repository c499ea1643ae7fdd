"""Every strategy on every graph: what it writes runs as predicted, and auto is never dearer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import DIMS, SAMPLES, runnable_models
from test_rewriting import TUNED, estimate

from memplan.errors import InfeasibleError, UsageError
from memplan.ir.phases import differentiated
from memplan.planning.apply import apply_plan
from memplan.planning.plan import Plan
from memplan.planning.planner import PlanRequest, Prepared, make_plan, prepare
from memplan.planning.verify import ensure
from memplan.runtime.child import profiled_run
from memplan.runtime.inputs import synthesize
from memplan.runtime.options import session_options
from memplan.shapes.fold import small_constants
from memplan.simulate.opened import OpenModel, open_model
from memplan.simulate.timeline import simulate
from memplan.solver.search.warm_up import warm_up
from memplan.strategies.builtin import list_strategies, parse_strategy

pytestmark = pytest.mark.ort

# All that are built in, with options that change what they do.
NAMED = (
    "none",
    "greedy",
    "segments",
    "segments{count=3}",
    "dtr",
    "dtr{heuristic=h_local}",
    "knapsack",
    "knapsack{cut=0}",
    "min-cut",
    "min-cut{ban=0}",
    "mirror",
    "mirror{function=kind,test=0}",
    "speed",
    "memory",
    "list{names=*1*}",
    "collection",
)
AUTO = "search{certify=0}"
# How far the budget lies above the floor, as a share of what is between floor and peak.
SHARE = 0.6
SECONDS = 1.5
# The sample models take seconds to run: of each, only every so many-th strategy does.
EVERY = 8


@pytest.fixture(scope="module", autouse=True)
def machine_code() -> None:
    """Compile before any time limit runs."""
    warm_up()


@dataclass(frozen=True)
class Graph:
    """A model, how to plan it for a budget, its floor and its peak."""

    model: OpenModel
    prepared: Prepared
    floor: int
    peak: int

    def plan(self, strategy: str, budget: int) -> Plan | None:
        """What ``strategy`` makes of the budget; None: no plan, or it cannot work here."""
        request = replace(self.prepared.request, budget_bytes=budget)
        try:
            prepared = replace(self.prepared, request=request)
            return make_plan(prepared, parse_strategy(strategy), SECONDS)
        except (InfeasibleError, UsageError):
            return None


def opened(path: Path) -> Graph:
    """The model in ``path``; every fifth forward tensor is kept, for ``collection``."""
    model = open_model(path, DIMS.get(path.stem, {}))
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
    labels = prepared.encoded.labels
    if labels is not None:
        marked = np.arange(len(labels.names)) % 5 == 0
        labels = replace(labels, marked=marked)
        prepared = replace(prepared, encoded=replace(prepared.encoded, labels=labels))
    return Graph(model, prepared, prepared.resident_bytes + prepared.floor.with_workspace, peak)


def outputs_of(
    model: onnx.ModelProto, feeds: Any, dims: Mapping[str, int]
) -> tuple[list[np.ndarray], dict[str, Any]]:
    """What a tuned session computes on one thread, and what it measured."""
    kept: list[np.ndarray] = []
    request = {"provider": "cpu", "model": model.SerializeToString(), "threads": 1}
    options = session_options("tuned", dims)
    found = profiled_run(request, feeds, options, lambda out: kept.extend(o.copy() for o in out))
    return kept, found


def test_all_strategies_are_here() -> None:
    named = {text.partition("{")[0] for text in (*NAMED, AUTO)}
    assert named == {item.name for item in list_strategies() if item.owner == "memplan"}


@pytest.mark.parametrize("path", runnable_models(), ids=lambda path: path.stem)
def test_plans_run_as_predicted(path: Path) -> None:
    graph = opened(path)
    model, dims = graph.model, graph.model.prepared.dims
    chosen = NAMED if path.parent != SAMPLES else NAMED[runnable_models().index(path) :: EVERY]
    feeds = synthesize(model.graph)
    reference, _ = outputs_of(model.prepared.proto, feeds, dims)
    budget = int(graph.floor + SHARE * (graph.peak - graph.floor))
    seen: set[tuple[int, ...]] = set()
    for strategy in chosen:
        # Where it does not fit: what it does with room enough.
        plan = graph.plan(strategy, budget) or graph.plan(strategy, 2 * graph.peak)
        if plan is None or plan.sequence in seen:
            continue
        seen.add(plan.sequence)
        rewritten = apply_plan(model.prepared.proto, plan, dims)
        timeline = ensure(model.prepared.proto, rewritten, plan, model.prepared.types, TUNED)
        outputs, measured = outputs_of(rewritten, feeds, dims)
        assert measured["measured_dynamic_bytes"] == timeline.dynamic_peak_bytes, strategy
        assert len(outputs) == len(reference)
        for before, after in zip(reference, outputs, strict=True):
            assert before.tobytes() == after.tobytes(), strategy
    assert len(seen) > 1 or path.parent == SAMPLES


@pytest.mark.parametrize("path", runnable_models(), ids=lambda path: path.stem)
def test_auto_never_costs_more(path: Path) -> None:
    graph = opened(path)
    budget = int(graph.floor + SHARE * (graph.peak - graph.floor))
    auto = graph.plan(AUTO, budget)
    for strategy in NAMED:
        plan = graph.plan(strategy, budget)
        if plan is not None:
            assert auto is not None, strategy
            assert auto.extra_cost_fraction <= plan.extra_cost_fraction + 1e-9, strategy
