"""The runtime's two node orders on graphs small enough to follow by hand."""

from __future__ import annotations

import onnx
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


FORK = """
g (float[4] x) => (float[4] y, float[4] z)
{
    [root] r = Abs(x)
    [left] l = Neg(r)
    [right] s = Exp(r)
    [join] y = Add(l, s)
    [leaf] z = Relu(l)
}"""


def test_priority_order_is_the_file_order() -> None:
    assert ran(FORK) == ["root", "left", "right", "join", "leaf"]


def test_priority_order_runs_shape_and_size_as_soon_as_their_input_is_there() -> None:
    text = """
    g (float[4] x) => (float[4] c, int64[1] of_x, int64[1] of_a, int64 of_b)
    {
        [a] a = Abs(x)
        [b] b = Neg(a)
        [c] c = Exp(b)
        [size_b] of_b = Size(b)
        [shape_a] of_a = Shape(a)
        [shape_x] of_x = Shape(x)
    }"""
    assert ran(text) == ["shape_x", "a", "shape_a", "b", "size_b", "c"]


def test_constants_are_no_nodes() -> None:
    text = """
    g (float[4] x) => (float[4] y)
    {
        [c] c = Constant<value_float = 2.0>()
        [y] y = Mul(x, c)
    }"""
    assert ran(text) == ["y"]


def test_default_order_visits_leaves_and_producers_last_index_first() -> None:
    # From the last leaf: leaf needs left needs root. Then join needs left (done) and right.
    assert ran(FORK, default=True) == ["root", "left", "leaf", "right", "join"]


def test_default_order_takes_the_producer_with_the_highest_index_first() -> None:
    text = """
    g (float[4] x) => (float[4] y)
    {
        [first] a = Abs(x)
        [second] b = Neg(x)
        [third] c = Exp(x)
        [join] y = Sum(b, a, c)
    }"""
    assert ran(text, default=True) == ["third", "second", "first", "join"]


def test_default_order_delays_weight_gradients_to_the_end_in_reverse() -> None:
    text = """
    g (float[4] x, float[4] w) => (float[4] dw1, float[4] dw2, float[4] dx)
    {
        [f1] a = Abs(x)
        [f2] b = Neg(a)
        [dw2] dw2 = Mul(b, w)
        [b2] g = Exp(b)
        [dw1] dw1 = Mul(g, a)
        [b1] dx = Neg(g)
    }"""
    assert ran(text) == ["f1", "f2", "dw2", "b2", "dw1", "b1"]
    # dx, the last leaf, comes first; dw2, the first one, last.
    assert ran(text, default=True) == ["f1", "f2", "b2", "b1", "dw1", "dw2"]


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
