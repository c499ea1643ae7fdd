"""What the pass that removes copies sees and the proof does not is kept, never an error of ours."""

from __future__ import annotations

import onnx

from memplan.api.rewrite.goal import RewriteOptions
from memplan.api.rewrite.run import rewrite
from memplan.units import parse_size

# The end of the slice follows from constants, and the file states no shape of what it makes.
WHOLE_SLICE = """
    <ir_version: 10, opset_import: ["" : 18]>
    g (float[4,6] x) => (float[4,6] y)
        <int64[1] zero = {0}, int64[1] twelve = {12}, int64[1] two = {2}, int64[1] one = {1}>
    {
        h = Tanh(x)
        end = Div(twelve, two)
        s = Slice(h, zero, end, one)
        y = Exp(s)
    }
"""


def test_a_copy_that_the_proof_cannot_follow_stays() -> None:
    options = RewriteOptions(parse_size("100%"), strategy="greedy", optimize="none")
    result = rewrite(onnx.parser.parse_model(WHOLE_SLICE), options)
    assert "Slice" in {node.op_type for node in result.model.graph.node}
    assert "elide" not in {step.name for step in result.passes}
