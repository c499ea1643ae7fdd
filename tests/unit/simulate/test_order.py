"""The runtime's two node orders on graphs small enough to follow by hand."""

import onnx
import pytest
from hypothesis import HealthCheck, given, settings

from helpers.graphs import TUNED, graph_of, names, open_text
from helpers.random_graphs import models as random_models
from memplan.ir.graph import Graph
from memplan.simulate.run_order import execution_order
from memplan.simulate.session import session_kind

DEFAULT = session_kind("default")


def ran(text: str, *, default: bool = False) -> list[str]:
    """Node names in the order in which they run."""
    graph = graph_of(text)
    return names(graph, execution_order(graph, DEFAULT if default else TUNED))


FORK = """g (float[4] x) => (float[4] y, float[4] z) {
  [root] r = Abs(x) [left] l = Neg(r) [right] s = Exp(r) [join] y = Add(l, s)
  [leaf] z = Relu(l) }"""
SHAPES = """g (float[4] x) => (float[4] c, int64[1] of_x, int64[1] of_a, int64 of_b) {
  [a] a = Abs(x) [b] b = Neg(a) [c] c = Exp(b) [size_b] of_b = Size(b)
  [shape_a] of_a = Shape(a) [shape_x] of_x = Shape(x) }"""
JOIN = """g (float[4] x) => (float[4] y) {
  [first] a = Abs(x) [second] b = Neg(x) [third] c = Exp(x) [join] y = Sum(b, a, c) }"""
GRADIENTS = """g (float[4] x, float[4] w) => (float[4] dw1, float[4] dw2, float[4] dx) {
  [f1] a = Abs(x) [f2] b = Neg(a) [dw2] dw2 = Mul(b, w) [b2] g = Exp(b) [dw1] dw1 = Mul(g, a)
  [b1] dx = Neg(g) }"""


@pytest.mark.parametrize(
    ("text", "order"),
    [
        (FORK, "root left right join leaf"),  # that of the file
        (SHAPES, "shape_x a shape_a b size_b c"),  # as soon as their input is there
        (GRADIENTS, "f1 f2 dw2 b2 dw1 b1"),
    ],
)
def test_priority_order(text: str, order: str) -> None:
    assert ran(text) == order.split()


@pytest.mark.parametrize(
    ("text", "order"),
    [
        # From the last leaf: leaf needs left needs root. Then join needs left (done) and right.
        (FORK, "root left leaf right join"),
        (JOIN, "third second first join"),  # the producer with the highest index first
        (GRADIENTS, "f1 f2 b2 b1 dw1 dw2"),  # dx, the last leaf, comes first; dw2, the first, last
    ],
)
def test_default_order(text: str, order: str) -> None:
    assert ran(text, default=True) == order.split()


def check_topological(graph: Graph, order: list[int]) -> None:
    """Every node once, after all producers of what it reads."""
    assert sorted(order) == list(range(len(graph.nodes)))
    place = {index: step for step, index in enumerate(order)}
    for node in graph.nodes:
        for t in node.reads:
            producer = graph.tensors[t].producer
            assert producer < 0 or place[producer] < place[node.id]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(random_models())
def test_orders_of_random_graphs(model: onnx.ModelProto) -> None:
    graph = open_text(model).graph
    for session in (TUNED, DEFAULT):
        check_topological(graph, execution_order(graph, session))
    # The tuned order without Shape and Size is the file's; those stand right behind their input.
    order = execution_order(graph, TUNED)
    eager = [node.op in ("Shape", "Size") for node in graph.nodes]
    rest = [index for index in order if not eager[index]]
    assert rest == sorted(rest)
    for step, index in enumerate(order):
        if eager[index]:
            producer = graph.tensors[graph.nodes[index].inputs[0]].producer
            behind = order.index(producer) if producer >= 0 else -1
            assert all(eager[other] for other in order[behind + 1 : step])
