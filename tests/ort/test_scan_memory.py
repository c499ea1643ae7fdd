"""Memory inside Scan bodies: what is predicted is what ONNX Runtime's profiler saw."""

import onnxruntime as ort
import pytest

from helpers.graphs import TUNED, open_text
from memplan.runtime.inputs import synthesize
from memplan.runtime.messages import RunRequest
from memplan.runtime.profiled import profiled_runs
from memplan.runtime.session_options import session_options
from memplan.simulate.session import SessionKind
from memplan.simulate.timeline import later_runs, simulate

PLAIN = SessionKind("default", "cpu", priority_order=False, reuse=True)

# The runtime lists nodes of bodies before those around them; what it has in use before the first is
# taken for what was there before the run, so another node comes first. Two states of unequal size,
# a slice, two stacked outputs; the peak is in the body of the Scan.
TEXT = """
    g (float[{x}] x, float[32] h, float[8] c) => (float[32] last, float[{y}] all)
    {{
        [first] h2 = Neg(h)
        [loop] last, end, all, twice = Scan<num_scan_inputs = 1, {attributes} body = step
            (float[32] h0, float[8] c0, float[32] u)
                => (float[32] h1, float[8] c1, float[{inner}] a, float[32] b)
            {{
                [sum] s = Add(h0, u)
                [sq] q = Mul(s, s)
                [tanh] t = Tanh(q)
                [h1] h1 = Add(t, s)
                [c1] c1 = Neg(c0)
                [a] a = Mul(t, s)
                [b] b = Identity(h1)
            }}>(h2, c, x)
        [use] unused = Relu(twice)
    }}"""


KINDS = pytest.mark.parametrize("kind", [TUNED, PLAIN], ids=["tuned", "plain"])


def check(text: str, kind: SessionKind, uncounted: int = 0) -> None:
    """The dynamic peaks of the first and of the second run are those predicted, but for bytes that
    are not counted."""
    model = open_text(text)
    timeline = simulate(model.graph, kind)
    options = session_options(kind.name)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    content = model.prepared.proto.SerializeToString()
    found = profiled_runs(content, RunRequest(threads=1), synthesize(model.graph), options)
    assert found.dynamic_bytes - uncounted == timeline.dynamic_peak_bytes
    later = later_runs(timeline) if kind.patterns else timeline
    assert found.second_run_dynamic_bytes - uncounted == later.dynamic_peak_bytes


@KINDS
@pytest.mark.parametrize("inner", ["32", "n"])
@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_states_and_slices(kind: SessionKind, steps: int, inner: str) -> None:
    """A body that runs twice holds its own memory pattern, in the first run from its second step
    on."""
    check(TEXT.format(x=f"{steps},32", y=f"{steps},32", attributes="", inner=inner), kind)


@KINDS
@pytest.mark.parametrize("directions", [0, 1])
def test_sequences_along_another_axis(kind: SessionKind, directions: int) -> None:
    """The input is transposed before the first step, the output behind the last."""
    attributes = (
        "scan_input_axes = [1], scan_output_axes = [1, 0], "
        f"scan_input_directions = [{directions}], scan_output_directions = [{directions}, 0],"
    )
    text = TEXT.format(x="32,7", y="32,7", attributes=attributes, inner="32")
    check(text, kind)
    timeline = simulate(open_text(text).graph, TUNED)
    whole, body = 7 * 32 * 4, 2 * 32 * 4  # what is transposed at the end, and what is gone then
    assert timeline.workspace.tolist() == [0, whole - body, 0]


LOOP = """
    g (float[256] x, float[5,256] v) => (float y)
    <int64 trips = {{{trips}}}, int64[1] first = {{0}}>
    {{
        [first] x2 = Neg(x)
        [loop] last, all = Loop<body = b (int64 i, bool more, float[{declared}] s)
            => (bool more2, float[{declared}] s2, float[{declared}] a)
            {{
                [more] more2 = Identity(more)
                [row] r = Gather(v, i)
                {inner}
                [s2] s2 = Add(t, r)
                [a] a = Mul(s2, t)
            }}>(trips, , x2)
        [sum] z = ReduceSum<keepdims = 0>(all, first)
        [both] w = Mul(z, last)
        [y] y = ReduceSum<keepdims = 0>(w)
    }}"""
SCANNED = """
    [scan] u, all = Scan<num_scan_inputs = 1, body = step (float[256] h, float[256] e)
        => (float[256] h2, float[256] k)
        { [p] p = Mul(h, e) [q] q = Tanh(p) [h2] h2 = Add(q, h) [k] k = Cos(q) }>(s, v)
    [t] t = Sin(u)"""


@KINDS
@pytest.mark.parametrize("trips", [1, 2, 5])
@pytest.mark.parametrize(
    ("inner", "declared"),
    [("[u] u = Exp(s) [t] t = Sin(u)", "256"), ("[t] t = Sin(s)", "n"), (SCANNED, "256")],
)
def test_loops_and_scans_in_them(kind: SessionKind, trips: int, declared: str, inner: str) -> None:
    check(LOOP.format(trips=trips, declared=declared, inner=inner), kind)


SEQUENCE = """
    g (float[2,256] x, float[256] h) => (float y) <int64 trips = {3}, int64[2] one = {1, 1}>
    {
        [first] x2 = Neg(x)
        [split] parts = SplitToSequence(x2, one)
        [loop] last = Loop<body = b (int64 i, bool more, float[256] s)
            => (bool more2, float[256] s2)
            {
                [more] more2 = Identity(more)
                [n] n = SequenceLength(parts)
                [part] p = Cast<to = 1>(n)
                [t] t = Mul(p, s)
                [u] u = Exp(t)
                [v] v = Mul(u, t)
                [s2] s2 = Add(v, u)
            }>(trips, , h)
        [y] y = ReduceSum<keepdims = 0>(last)
    }"""


@KINDS
def test_no_pattern_is_made_where_a_sequence_is_fed(kind: SessionKind) -> None:
    check(SEQUENCE, kind, 2 * 256 * 4)
