"""What the profiler's events say of a run: its base, its peak, and those of the second run."""

import onnxruntime as ort

from helpers.graphs import open_text
from memplan.runtime.inputs import synthesize
from memplan.runtime.messages import RunRequest
from memplan.runtime.profiled import profiled_runs
from memplan.runtime.session_options import session_options
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import later_runs, simulate

TEXT = """
g (float[256] x) => (float[300] y) <int64[2] pads = {0, 44}, float[4] small = {1, 2, 3, 4}>
{
    [a] a = Exp(x) [b] b = Sin(a) [p] p = Pad(b, pads) [q] q = Cos(p)
    [r] r = Exp(q) [s] s = Add(r, p) [y] y = Sin(s)
}"""


def test_first_and_second_run_are_measured_apart() -> None:
    """Later runs of a plain session use one block for all, which has gaps."""
    model, kind = open_text(TEXT), session_kind("default")
    options = session_options("default", {})
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    feeds = synthesize(model.graph, 0)
    content = model.prepared.proto.SerializeToString()
    found = profiled_runs(content, RunRequest(session="default", threads=1), feeds, options, len)
    timeline = simulate(model.graph, kind)
    second = later_runs(timeline).dynamic_peak_bytes
    assert found.dynamic_bytes == timeline.dynamic_peak_bytes
    assert found.second_run_dynamic_bytes == second
    assert second != timeline.dynamic_peak_bytes
    assert found.base_bytes < found.dynamic_bytes
