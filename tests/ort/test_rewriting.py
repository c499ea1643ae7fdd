"""Rewritten models: predicted = measured, within budget, and every output bit-equal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from helpers.graphs import open_text
from helpers.models import each, runnable_models
from helpers.originals import original
from helpers.plans import outputs_of, plan_and_apply
from helpers.random_graphs import models
from helpers.training_steps import STEPS
from memplan.errors import InfeasibleError
from memplan.runtime.inputs import synthesize
from memplan.shapes.prepare import prepare as prepare_model
from memplan.simulate.opened import OpenModel, opened

pytestmark = pytest.mark.ort

SHARE, SHARES = 0.6, (0.8, 0.6, 0.4)  # of real graphs, and of small steps


@pytest.mark.parametrize("path", each(runnable_models()))
def test_real_training_graphs(path: Path) -> None:
    source = original(path)
    try:
        rewritten, plan, timeline = plan_and_apply(source.model, SHARE)
    except InfeasibleError:
        return  # too tight for this graph; what the answer says is tested elsewhere
    measured, compared = source.run(rewritten)
    assert measured.dynamic_bytes == timeline.dynamic_peak_bytes
    assert timeline.resident_bytes + measured.dynamic_bytes <= plan.budget_bytes
    if not source.model.graph.bodies:
        steps = [node.nbytes - measured.base_bytes for node in measured.nodes]
        assert steps == timeline.dynamic.tolist()
    assert compared.bitwise, compared


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("make", STEPS, ids=lambda make: make.__name__)
def test_small_training_steps(make: Callable[[], onnx.ModelProto], share: float) -> None:
    before = open_text(make())
    try:
        assert_same_results(before, share)
    except InfeasibleError:
        assert share < max(SHARES)  # there is a plan for the widest budget


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(models(longest=30), st.sampled_from((0.95, 0.7, 0.4, 0.1)))
def test_random_graphs(model: onnx.ModelProto, share: float) -> None:
    try:
        assert_same_results(opened(prepare_model(model, Path("random.onnx"), {})), share)
    except InfeasibleError:
        assume(False)


def assert_same_results(before: OpenModel, share: float) -> None:
    """The rewritten model takes what was predicted at every step, and computes the same bits.

    Raises:
        InfeasibleError: there is no plan for the budget.
    """
    rewritten, plan, timeline = plan_and_apply(before, share)
    feeds = synthesize(before.graph)
    reference, _ = outputs_of(before.prepared.proto, feeds)
    outputs, result = outputs_of(rewritten, feeds)
    steps = [node.nbytes - result.base_bytes for node in result.nodes]
    assert steps == timeline.dynamic.tolist()
    assert timeline.resident_bytes + max(steps) <= plan.budget_bytes
    for a, b in zip(reference, outputs, strict=True):
        assert a.tobytes() == b.tobytes()
