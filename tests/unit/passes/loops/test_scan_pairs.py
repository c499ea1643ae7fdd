"""Existing forward and backward Scans: stored tensors are dropped and made again."""

import numpy as np
import onnx
import onnx.parser
import pytest

from helpers.gradients import runtime
from helpers.loops import pairs_of, recompute_in_scans, reopened
from helpers.scans import model_of_text
from memplan.errors import UsageError


def same_bits(one: onnx.ModelProto, other: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    onnx.checker.check_model(other, full_check=True)
    before, after = runtime(one, feeds), runtime(other, feeds)
    assert before.keys() == after.keys()
    for name, array in before.items():
        assert array.tobytes() == after[name].tobytes(), name


FOREIGN = """
    g (float[4,3] x, float[3] h0, float[3] d)
        => (float[3] last, float[3] h0_grad, float[4,3] x_grad)
    {
        [forward] last, es, ts, hs = Scan<num_scan_inputs = 1, body = step
            (float[3] h, float[3] u) => (float[3] next, float[3] eo, float[3] t, float[3] ho)
            { [e] e = Exp(u) [t] t = Tanh(e) [n] next = Mul(t, h) [eo] eo = Identity(e)
              [ho] ho = Identity(h) }>(h0, x)
        [back] h0_grad, x_grad = Scan<num_scan_inputs = 3, scan_input_directions = [1, 1, 1],
            scan_output_directions = [1], body = reverse
            (float[3] h, float[3] a, float[3] next, float[3] t) => (float[3] g1, float[3] gx)
            { [g1] g1 = Mul(h, next) [q] q = Mul(h, t)
              [bb] bb = Mul(next, next) [s] s = Sub(q, bb)
              [gx] gx = Mul(s, a) }>(d, es, ts, hs)
    }"""


def test_a_pair_of_another_tool() -> None:
    """Names differ between the bodies, and nothing says what belongs together but the data flow."""
    model = model_of_text(FOREIGN)
    feeds = {
        "x": np.ones((4, 3), np.float32) / 3,
        "h0": np.ones(3, np.float32),
        "d": np.full(3, 0.7, np.float32),
    }
    for wish, outputs in (
        ("all", ["last", "hs"]),
        ("t", ["last", "es", "hs"]),
        ("e", ["last", "ts", "hs"]),
    ):
        rewritten = recompute_in_scans(model, wish)
        assert list(rewritten.graph.node[0].output) == outputs
        same_bits(model, rewritten, feeds)
    (pair,) = pairs_of(reopened(model))
    assert (pair.forward.node.name, pair.backward.node.name, pair.steps) == ("forward", "back", 4)
    assert [item.tensor for item in pair.stored] == ["e", "t", "h"]
    with pytest.raises(UsageError, match="--scan-recompute a: no forward loop"):
        recompute_in_scans(model, "a")


def test_a_pair_that_reads_copies() -> None:
    """One finder serves every report: it sees through copies without a note, too."""
    text = FOREIGN.replace("[back]", "[e2] e2 = Identity(es) [t2] t2 = Identity(ts) [back]")
    model = model_of_text(text.replace("(d, es, ts, hs)", "(d, e2, t2, hs)"))
    (pair,) = pairs_of(reopened(model))
    assert [item.tensor for item in pair.stored] == ["e", "t", "h"]
