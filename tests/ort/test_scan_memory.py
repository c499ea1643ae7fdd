"""Memory inside Scan bodies: what is predicted is what ONNX Runtime's profiler saw."""

import pytest

from helpers.graphs import TUNED, open_text
from memplan.runtime.inputs import synthesize
from memplan.runtime.messages import RunRequest
from memplan.runtime.profiled import profiled_runs
from memplan.runtime.session_options import session_options
from memplan.simulate.timeline import simulate

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


def peaks(text: str) -> tuple[int, int]:
    """Dynamic peak: predicted, measured."""
    model = open_text(text)
    timeline = simulate(model.graph, TUNED)
    found = profiled_runs(
        model.prepared.proto.SerializeToString(),
        RunRequest(threads=1),
        synthesize(model.graph),
        session_options("tuned"),
    )
    return timeline.dynamic_peak_bytes, found.dynamic_bytes


@pytest.mark.parametrize("inner", ["32", "n"])
@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_states_and_slices(steps: int, inner: str) -> None:
    text = TEXT.format(x=f"{steps},32", y=f"{steps},32", attributes="", inner=inner)
    predicted, measured = peaks(text)
    assert predicted == measured


@pytest.mark.parametrize("directions", [0, 1])
def test_sequences_along_another_axis(directions: int) -> None:
    """The input is transposed before the first step, the output behind the last."""
    attributes = (
        "scan_input_axes = [1], scan_output_axes = [1, 0], "
        f"scan_input_directions = [{directions}], scan_output_directions = [{directions}, 0],"
    )
    text = TEXT.format(x="32,7", y="32,7", attributes=attributes, inner="32")
    predicted, measured = peaks(text)
    assert predicted == measured
    timeline = simulate(open_text(text).graph, TUNED)
    whole, body = 7 * 32 * 4, 2 * 32 * 4  # what is transposed at the end, and what is gone then
    assert timeline.workspace.tolist() == [0, whole - body, 0]
