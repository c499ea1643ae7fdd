"""Steps of shapes on which the published systems stumbled: every strategy, plan and results."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest

from helpers.graphs import open_text
from helpers.plans import AUTO, NAMED, Task, checked, outputs_of, task_of
from helpers.training_steps import STEPS
from memplan.planning.apply import apply_plan
from memplan.planning.plan import Plan
from memplan.runtime.inputs import synthesize

pytestmark = pytest.mark.ort


def lowest_plan(graph: Task) -> tuple[int, Plan]:
    """The tightest of some budgets for which there is a plan, and the plan."""
    for share in (0.4, 0.6, 0.8, 0.95):
        budget = graph.budget(share)
        plan = graph.plan(AUTO, budget)
        if plan is not None:
            return budget, plan
    raise AssertionError("no plan for any budget below the peak")


@pytest.mark.parametrize("make", STEPS, ids=lambda make: make.__name__)
def test_every_strategy(make: Callable[[], onnx.ModelProto]) -> None:
    graph = task_of(open_text(make()))
    model = graph.model
    feeds = synthesize(model.graph)
    reference, _ = outputs_of(model.prepared.proto, feeds)
    budget, auto = lowest_plan(graph)
    for strategy in (AUTO, *NAMED):
        fitting = graph.plan(strategy, budget)
        if fitting is not None:
            assert auto.extra_cost_fraction <= fitting.extra_cost_fraction + 1e-9, strategy
        plan = fitting or graph.plan(strategy, 2 * graph.peak)
        if plan is None:
            continue
        rewritten = apply_plan(model.prepared.proto, plan, {})
        timeline = checked(model.prepared, rewritten, plan)
        outputs, measured = outputs_of(rewritten, feeds)
        assert measured.dynamic_bytes == timeline.dynamic_peak_bytes, strategy
        for before, after in zip(reference, outputs, strict=True):
            assert before.tobytes() == after.tobytes(), strategy
