"""Views stand right before what reads them, behind all that they read."""

from __future__ import annotations

import pytest

from helpers.graphs import TUNED, graph_of
from memplan.ops.memory import semantics
from memplan.planning.late_views import late_views
from memplan.simulate.run_order import execution_order

SHAPE_IS_A_VIEW = """g (float[2,3] x) => (float y)
  <int64 six = {6}, int64[1] zero = {0}>
  { [exp] a = Exp (x) [u] shape = Unsqueeze (six, zero) [tanh] b = Tanh (a)
    [r] flat = Reshape (a, shape) [v] again = Unsqueeze (flat, zero) [neg] c = Neg (b)
    [sum] y = ReduceSum <keepdims = 0> (again) }"""
TWO_READERS = """g (float[2,3] x) => (float[6] y, float[6] z)
  <int64 six = {6}, int64[1] zero = {0}>
  { [u] shape = Unsqueeze (six, zero) [r] flat = Reshape (x, shape) [exp] y = Exp (flat)
    [abs] a = Abs (x) [s] other = Reshape (a, shape) [neg] z = Neg (other) }"""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (SHAPE_IS_A_VIEW, ["exp", "tanh", "neg", "u", "r", "v", "sum"]),
        (TWO_READERS, ["u", "r", "exp", "abs", "s", "neg"]),
    ],
)
def test_a_view_comes_behind_all_that_it_reads(text: str, names: list[str]) -> None:
    graph = graph_of(text)
    order = late_views(graph, list(execution_order(graph, TUNED)), semantics("cpu"))
    assert [graph.nodes[index].name for index in order] == names
