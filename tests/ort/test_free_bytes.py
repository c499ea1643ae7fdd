"""What passes take for granted of kernels, tried on ONNX Runtime at the values where it matters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import integers

from helpers.effort import tries
from helpers.free_graphs import feeds, models
from helpers.plans import outputs_of
from memplan.equivalence.prove import Side, prove, reference_side
from memplan.passes.manager import run_passes
from memplan.passes.masks import Masks
from memplan.passes.order import Order
from memplan.passes.release import Release
from memplan.shapes.prepare import prepare
from memplan.simulate.opened import opened
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import simulate

pytestmark = pytest.mark.ort

TUNED = session_kind("tuned")


def bits(model: onnx.ModelProto, numbers: dict[str, np.ndarray]) -> tuple[list[bytes], list[int]]:
    outputs, ran = outputs_of(model, numbers)
    return [o.tobytes() for o in outputs], [node.nbytes - ran.base_bytes for node in ran.nodes]


@settings(
    max_examples=tries(150),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(models(), integers(0, 2**32 - 1))
def test_random_graphs_keep_their_bits_and_no_peak_rises(model: onnx.ModelProto, seed: int) -> None:
    before = opened(prepare(onnx.shape_inference.infer_shapes(model), Path("free.onnx"), {}))
    first = simulate(before.graph, TUNED)
    passes = [Release(), Masks(), Order(rounds=2)]
    steps = run_passes(passes, before, first)
    peaks = [first.peak_with_workspace_bytes]
    peaks += [step.timeline.peak_with_workspace_bytes for step in steps]
    assert peaks == sorted(peaks, reverse=True)
    after = steps[-1].model.prepared.proto
    proof = prove(reference_side(before.prepared), Side(after, Path()))
    assert proof.proved, proof.reason
    numbers = feeds(seed)
    outputs, dynamic = bits(after, numbers)
    assert dynamic == steps[-1].timeline.dynamic.tolist()
    assert outputs == bits(model, numbers)[0]
