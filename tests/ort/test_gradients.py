"""Generated training graphs on ONNX Runtime: what they keep, and what they compute."""

from pathlib import Path

import onnx
import pytest

import memplan
from helpers.graphs import parse
from memplan.api.analysis import analyze_open
from memplan.ir.graph import Phase
from memplan.runtime.inputs import synthesize
from memplan.runtime.messages import RunRequest
from memplan.runtime.profiled import profiled_runs
from memplan.runtime.session_options import session_options
from memplan.shapes.prepare import prepare
from memplan.simulate.opened import OpenModel, opened
from memplan.simulate.session import session_kind

# z = sum(op(x + 2, m)), where only x needs a gradient.
GUARDED = {
    "mul": ("x[64,64]", "m[64,64]", "Mul(a, m)"),
    "div": ("x[64,64]", "m[64,64]", "Div(a, m)"),
    "broadcast": ("x[64,64]", "m[64]", "Mul(a, m)"),
    "bmm": ("x[4,64,32]", "m[4,32,1]", "MatMul(a, m)"),
    "addmm": ("x[64,32]", "m[32,32]", "Gemm(a, m, x0)"),
    "conv": ("x[2,4,16,16]", "m[4,4,3,3]", "Conv<pads = [1, 1, 1, 1]>(a, m)"),
    "where": ("x[64,64]", "m[64,64]", "Where(c, a, m)"),
}


def guarded(case: str) -> onnx.ModelProto:
    x, m, call = GUARDED[case]
    return parse(f"""
        g (float{x.removeprefix("x")} x, float{m.removeprefix("m")} m, float[32] x0, bool[64,64] c)
            => (float z) <float two = {{2}}>
        {{ a = Add(x, two) b = {call} z = ReduceSum<keepdims = 0>(b) }}""")


def model_of(proto: onnx.ModelProto) -> OpenModel:
    return opened(prepare(proto, Path("test.onnx"), {}))


def measured_peak(model: OpenModel) -> int:
    """Dynamic bytes that the runtime really has in use at most."""
    proto = model.prepared.proto.SerializeToString()
    options, feeds = session_options("tuned"), synthesize(model.graph)
    result = profiled_runs(proto, RunRequest(threads=1), feeds, options)
    return max(node.nbytes for node in result.nodes) - result.base_bytes


@pytest.mark.parametrize("case", GUARDED)
def test_nothing_is_kept_that_no_gradient_needs(case: str) -> None:
    """PyTorch's test of guarded saved inputs: peak as without the backward part.

    A product's gradient in full size and its result are as large as what the forward part holds,
    and the loss (4 bytes) is an output that stays.
    """
    forward = guarded(case)
    plain = model_of(forward)
    trained = model_of(memplan.gradients(forward, "z", "x"))
    before, after = (analyze_open(m, session_kind("tuned", "cpu")) for m in (plain, trained))
    assert after.stashes == ()
    assert Phase.BACKWARD in trained.phases.of
    wanted = before.timeline.dynamic_peak_bytes + (4 if case in ("bmm", "addmm", "conv") else 0)
    assert after.timeline.dynamic_peak_bytes == wanted
    constants = after.timeline.resident_bytes - before.timeline.resident_bytes
    assert constants <= 64
    assert measured_peak(plain) == before.timeline.dynamic_peak_bytes
    assert measured_peak(trained) == wanted
