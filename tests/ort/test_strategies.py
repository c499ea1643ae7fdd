"""Every strategy on steps that are hard to plan and on five families of networks: what it writes
runs as predicted and computes the same bits, and auto is never dearer."""

import pytest

from helpers.effort import few_by_day
from helpers.graphs import open_text
from helpers.plans import AUTO, NAMED, Task, checked, outputs_of, task_of
from helpers.training_steps import ALL_STEPS
from memplan.planning.apply import apply_plan
from memplan.planning.plan import Plan
from memplan.runtime.inputs import synthesize


def lowest_plan(graph: Task, shares: tuple[float, ...]) -> tuple[int, Plan]:
    """The tightest of some budgets for which there is a plan, and the plan."""
    for share in shares:
        budget = graph.budget(share)
        plan = graph.plan(AUTO, budget)
        if plan is not None:
            return budget, plan
    raise AssertionError("no plan for any budget below the peak")


@pytest.mark.parametrize("step", few_by_day(ALL_STEPS))
def test_every_strategy(step: str) -> None:
    graph = task_of(open_text(ALL_STEPS[step]()))
    model = graph.model
    feeds = synthesize(model.graph)
    reference, _ = outputs_of(model.prepared.proto, feeds)
    # In steps of hundreds of nodes the largeest takes the search longer than it has here.
    large = len(model.graph.nodes) > 105
    budget, auto = lowest_plan(graph, (0.6, 0.8, 0.95) if large else (0.4, 0.6, 0.8, 0.95))
    seen: set[tuple[int, ...]] = set()
    for strategy in (AUTO, *NAMED):
        fitting = graph.plan(strategy, budget)
        if fitting is not None:
            assert auto.extra_cost_fraction <= fitting.extra_cost_fraction + 1e-9, strategy
        # Where it does not fit: what it does with room enough.
        plan = fitting or graph.plan(strategy, 2 * graph.peak)
        if plan is None or plan.sequence in seen:
            continue
        seen.add(plan.sequence)
        rewritten = apply_plan(model.prepared.proto, plan, {})
        timeline = checked(model.prepared, rewritten, plan)
        outputs, measured = outputs_of(rewritten, feeds)
        assert measured.dynamic_bytes == timeline.dynamic_peak_bytes, strategy
        for before, after in zip(reference, outputs, strict=True):
            assert before.tobytes() == after.tobytes(), strategy
    assert len(seen) > 1
