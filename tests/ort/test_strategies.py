"""Every strategy on every graph: what it writes runs as predicted, and auto is never dearer."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest

from helpers.models import SAMPLES, each, runnable_models, two_of
from helpers.originals import original
from helpers.plans import AUTO, NAMED, Task, checked, outputs_of, task_of
from memplan.planning.apply import apply_plan
from memplan.solver.strategies.builtin import BUILT_IN

pytestmark = pytest.mark.ort

# How far the budget lies above the floor, as a share of what is between floor and peak.
SHARE = 0.6
# The sample models take seconds to run: of each, only every so many-th strategy does.
EVERY = 8


def test_all_strategies_are_here() -> None:
    named = {text.partition("{")[0] for text in (*NAMED, AUTO)}
    assert named == BUILT_IN.keys()


@lru_cache(maxsize=1)
def task(path: Path) -> Task:
    """The model in ``path``, to be planned; the tests of one model follow one another."""
    return task_of(original(path).model)


@pytest.mark.parametrize("path", each(runnable_models()))
def test_plans_run_as_predicted(path: Path) -> None:
    source, graph = original(path), task(path)
    proto, dims = graph.model.prepared.proto, graph.model.prepared.dims
    chosen = NAMED if path.parent != SAMPLES else NAMED[runnable_models().index(path) :: EVERY]
    seen: set[tuple[int, ...]] = set()
    for strategy in chosen:
        # Where it does not fit: what it does with room enough.
        plan = graph.plan(strategy, graph.budget(SHARE)) or graph.plan(strategy, 2 * graph.peak)
        if plan is None or plan.sequence in seen:
            continue
        seen.add(plan.sequence)
        rewritten = apply_plan(proto, plan, dims)
        timeline = checked(graph.model.prepared, rewritten, plan)
        outputs, measured = outputs_of(rewritten, source.feeds, dims)
        assert measured.dynamic_bytes == timeline.dynamic_peak_bytes, strategy
        for before, after in zip(source.outputs, outputs, strict=True):
            assert before.tobytes() == after.tobytes(), strategy
    assert len(seen) > 1 or path.parent == SAMPLES


@pytest.mark.parametrize("path", each(two_of(runnable_models(), 0)))
def test_auto_never_costs_more(path: Path) -> None:
    graph = task(path)
    auto = graph.plan(AUTO, graph.budget(SHARE))
    for strategy in NAMED:
        plan = graph.plan(strategy, graph.budget(SHARE))
        if plan is not None:
            assert auto is not None, strategy
            assert auto.extra_cost_fraction <= plan.extra_cost_fraction + 1e-9, strategy
