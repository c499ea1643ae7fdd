"""What is not chunked: operators and nodes without a use."""

from __future__ import annotations

import pytest

from helpers.graphs import open_text
from memplan.passes.change import facts_of
from memplan.passes.chunk.uses import uses


@pytest.mark.parametrize(
    "text",
    [
        # Batch statistics: a chunk has others.
        "g (float[4, 2, 2] x, float[2] s) => (float[4, 2, 2] y) "
        "{ [n] y = BatchNormalization(x, s, s, s, s) }",
        # Random numbers: a chunk would draw others.
        "g (float[4, 2] x, bool t) => (float[4, 2] y) <float r = {0.5}> "
        "{ [n] y = Dropout(x, r, t) }",
        # Without axes, a chunk of one row would lose that axis, too.
        "g (float[4, 1, 2] x) => (float[4, 2] y) { [n] y = Squeeze(x) }",
        # Which axes is not known.
        "g (float[4, 2] x, int64[1] a) => (float[4, 1] y) { [n] y = ReduceSum(x, a) }",
        # A body.
        "g (float[4, 2] x, bool c) => (float[4, 2] y) { [n] y = If (c) "
        "<then_branch = a () => (float[4, 2] u) { u = Neg(x) }, "
        "else_branch = b () => (float[4, 2] v) { v = Exp(x) }> }",
    ],
    ids=["batch statistics", "random", "squeeze", "unknown axes", "body"],
)
def test_what_is_not_known_has_no_use(text: str) -> None:
    model = open_text(text)
    assert uses(facts_of(model), model.graph.nodes[0]) == ()
