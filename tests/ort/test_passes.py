"""Passes on real and random graphs: what stays keeps its bits, peaks are as simulated."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from hypothesis import HealthCheck, given, settings

from helpers.effort import tries
from helpers.models import SAMPLES, each, runnable_models
from helpers.originals import original
from helpers.plans import outputs_of
from helpers.random_graphs import models
from memplan.api.validate.same_interface import without_inputs
from memplan.ir.reach import trained_outputs
from memplan.passes.elide import Elide
from memplan.passes.graph_pass import Pass
from memplan.passes.manager import run_passes
from memplan.passes.masks import Masks
from memplan.passes.order import Order
from memplan.passes.prune import Prune
from memplan.passes.release import Release
from memplan.runtime.inputs import synthesize
from memplan.shapes.prepare import prepare as prepare_model
from memplan.simulate.opened import OpenModel, opened
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import simulate

pytestmark = pytest.mark.ort

TUNED = session_kind("tuned")


def half(model: OpenModel) -> tuple[str, ...]:
    """Names of every second trained parameter."""
    owners = trained_outputs(model.graph, model.phases)
    names = sorted({model.graph.tensors[p].name for found in owners.values() for p in found})
    return tuple(name.replace("[", "[[]") for name in names[::2])


def all_passes(wrt: tuple[str, ...] = ()) -> list[Pass]:
    return [Elide(), Prune(wrt), Release(), Masks(), Order(rounds=2)]


@pytest.mark.nightly
@pytest.mark.parametrize("path", each(runnable_models("gpt_dropout")))
def test_real_training_graphs(path: Path) -> None:
    source = original(path)
    model, names = source.model, set(source.tuned.output_names)
    before = simulate(model.graph, TUNED)
    # The sample models are large; narrowed, they show all passes at once.
    for wrt in [half(model)] if path.parent == SAMPLES else [(), half(model)]:
        steps = run_passes(all_passes(wrt), model, before)
        gone = tuple(name for step in steps for name in step.removed_inputs)
        after = steps[-1]
        fewer = without_inputs(source.inputs, source.feeds, gone)
        measured, compared = source.run(after.model.prepared.proto, fewer)
        assert measured.dynamic_bytes == after.timeline.dynamic_peak_bytes
        assert after.timeline.peak_with_workspace_bytes <= before.peak_with_workspace_bytes
        assert compared.bitwise, compared
        removed = {name for step in steps for name in step.removed_outputs}
        assert names - set(measured.output_names) == removed
        assert bool(removed) == bool(wrt)


@settings(
    max_examples=tries(200),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(models(longest=30))
def test_random_graphs(model: onnx.ModelProto) -> None:
    before = opened(prepare_model(model, Path("random.onnx"), {}))
    timeline = simulate(before.graph, TUNED)
    after = run_passes(all_passes(), before, timeline)[-1]
    feeds = synthesize(before.graph)
    reference, _ = outputs_of(model, feeds)
    outputs, result = outputs_of(after.model.prepared.proto, feeds)
    steps = [node.nbytes - result.base_bytes for node in result.nodes]
    assert steps == after.timeline.dynamic.tolist()
    for a, b in zip(reference, outputs, strict=True):
        assert a.tobytes() == b.tobytes()
