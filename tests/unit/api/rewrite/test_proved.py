"""What passes know of a graph the proof finds out, too; where it does not, the report says so."""

from __future__ import annotations

import onnx
import pytest

from helpers.graphs import parse
from memplan.api.rewrite import proved
from memplan.api.rewrite.goal import RewriteOptions
from memplan.api.rewrite.rewriting import rewrite
from memplan.equivalence.prove import Equivalence
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


def test_a_copy_is_removed_whose_sizes_are_computed() -> None:
    options = RewriteOptions(parse_size("100%"), strategy="greedy", optimize="none")
    result = rewrite(onnx.parser.parse_model(WHOLE_SLICE), options)
    assert "Slice" not in {node.op_type for node in result.model.graph.node}
    assert result.equivalence.proved


@pytest.mark.rejects
def test_a_plan_that_is_given_up_is_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """The net: a proof that cannot follow a pass costs the pass, and is told."""
    real, calls = proved.prove, list[int]()

    def blind(*sides: object) -> Equivalence:
        calls.append(1)
        return Equivalence("it was not looked at") if len(calls) == 1 else real(*sides)

    monkeypatch.setattr(proved, "prove", blind)
    text = "g (float[4,6] x) => (float[4,6] y) { h = Tanh(x) s = Identity(h) y = Exp(s) }"
    options = RewriteOptions(parse_size("100%"), strategy="greedy", optimize="none")
    result = rewrite(parse(text), options)
    told = [text for text in result.assumptions if "planned again without elide" in text]
    assert len(told) == 1
    assert "it was not looked at" in told[0]
    assert "Identity" in {node.op_type for node in result.model.graph.node}
