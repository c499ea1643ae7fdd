"""Predicted memory equals ONNX Runtime's, byte for byte and step for step."""

from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from helpers.graphs import PLAIN
from helpers.models import each, runnable_models
from helpers.originals import original
from helpers.random_graphs import models
from memplan.runtime.inputs import synthesize
from memplan.runtime.messages import RunRequest
from memplan.runtime.profiled import profiled_runs
from memplan.runtime.session_options import session_options
from memplan.shapes.prepare import prepare
from memplan.simulate.opened import opened
from memplan.simulate.session import SessionKind, session_kind
from memplan.simulate.timeline import simulate

QUIET = settings(
    max_examples=tries(1000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def unfused_default() -> Any:
    """A plain session's order and buffer reuse, without the fusions that change the graph."""
    options = session_options("default")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_mem_pattern = False
    return options


def run(model: onnx.ModelProto, kind: SessionKind, options: Any, dims: dict[str, int]) -> None:
    """Simulate and run; every step must agree."""
    opened_model = opened(prepare(model, Path("random.onnx"), dims))
    timeline = simulate(opened_model.graph, kind)
    feeds = synthesize(opened_model.graph)
    result = profiled_runs(model.SerializeToString(), RunRequest(threads=1), feeds, options)
    ran = [node.name for node in result.nodes]
    assert ran == [opened_model.graph.nodes[n].name for n in timeline.order]
    measured = [node.nbytes - result.base_bytes for node in result.nodes]
    assert measured == timeline.dynamic.tolist()


@QUIET
@given(models())
def test_random_graphs_in_a_tuned_session(model: onnx.ModelProto) -> None:
    run(model, session_kind("tuned"), session_options("tuned"), {})


@QUIET
@given(models())
def test_random_graphs_in_default_order_with_reuse(model: onnx.ModelProto) -> None:
    run(model, PLAIN, unfused_default(), {})


@settings(QUIET, max_examples=tries(300))
@given(models(symbolic=True), st.integers(1, 9))
def test_random_graphs_with_a_symbolic_dimension(model: onnx.ModelProto, size: int) -> None:
    run(model, session_kind("tuned"), session_options("tuned", {"N": size}), {"N": size})


@pytest.mark.parametrize("path", each(runnable_models()))
def test_real_training_graphs(path: Path) -> None:
    model, measured = original(path).model, original(path).tuned
    timeline = simulate(model.graph, session_kind("tuned"))
    assert measured.dynamic_bytes == timeline.dynamic_peak_bytes
    # Later runs must need no more: tuned sessions switch memory patterns off.
    assert measured.second_run_dynamic_bytes == timeline.dynamic_peak_bytes
    if not model.graph.bodies:
        steps = [node.nbytes - measured.base_bytes for node in measured.nodes]
        assert steps == timeline.dynamic.tolist()
