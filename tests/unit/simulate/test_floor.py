"""The certified floor: right on hand-made graphs, and below every schedule of random ones."""

from __future__ import annotations

from random import Random

import onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.graphs import KIB, TUNED, graph_of, kib, names, node, open_text, random_order
from helpers.random_graphs import models as random_models
from memplan.ir.graph import ABSENT, Graph
from memplan.simulate.allocation import allocate
from memplan.simulate.floor import Floor, structural_floor
from memplan.simulate.session import SessionKind
from memplan.simulate.timeline import bodies_of, live_bytes, node_workspace, simulate


def floor_of(text: str, session: SessionKind = TUNED) -> tuple[Graph, Floor]:
    """The graph in ``text`` and its floor."""
    graph = graph_of(text)
    return graph, structural_floor(graph, simulate(graph, session))


def pinned(graph: Graph, floor: Floor) -> list[str]:
    """Names of the tensors that pin the floor."""
    return [graph.tensors[t].name for t in floor.plain.tensors]


def test_inputs_and_outputs_of_one_node() -> None:
    graph, floor = floor_of("""
    g (float[256] x) => (float[256] y)
    {
        [a] a = Neg(x)
        [b] b = Neg(x)
        [c] c = Neg(x)
        [join] d = Add(a, b)
        [y] y = Add(d, c)
    }""")
    assert floor.nbytes == floor.with_workspace == 3 * KIB
    assert floor.plain.node == node(graph, "join").id
    assert pinned(graph, floor) == ["a", "b", "d"]
    assert floor.plain.describe(graph) == (
        "Add join, which needs a (1.00 KiB), b (1.00 KiB), d (1.00 KiB) at once"
    )
    # In the file's order c lies beside them; another order, or running c again, avoids that.
    assert max(kib(simulate(graph, TUNED))) == 4


def test_resident_tensors_are_not_counted() -> None:
    _, floor = floor_of("""
    g (float[256] x, float[256] w) => (float[1] y) <int64[1] first = {0}>
    {
        [a] a = Add(x, w)
        [y] y = ReduceSum(a, first)
    }""")
    assert floor.nbytes == KIB + 4


def test_an_output_that_may_take_its_input_over_counts_once() -> None:
    text = """
    g (float[256] x) => (float[1] y) <int64[1] first = {0}>
    {
        [a] a = Neg(x)
        [b] b = OP(a)
        [y] y = ReduceSum(b, first)
    }"""
    assert floor_of(text.replace("OP", "Relu"))[1].nbytes == KIB + 4
    assert floor_of(text.replace("OP", "Exp"))[1].nbytes == 2 * KIB


def test_views_count_as_what_they_show() -> None:
    graph, floor = floor_of("""
    g (float[256] x) => (float y) <int64[2] square = {16, 16}, int64[1] flat = {256}>
    {
        [a] a = Neg(x)
        [v] v = Reshape(a, square)
        [w] w = Reshape(v, flat)
        [twice] b = Mul(a, w)
        [y] y = ReduceSum<keepdims = 0>(b)
    }""")
    assert floor.nbytes == 2 * KIB
    assert pinned(graph, floor) == ["a", "b"]


def test_optional_outputs_are_not_counted() -> None:
    _, floor = floor_of("""
    g (float[256,1] x) => (float y) <float[1] one = {1}>
    {
        [a] a = Neg(x)
        [ln] n, mean, deviation = LayerNormalization(a, one)
        [s] s = Add(mean, deviation)
        [t] t = ReduceSum<keepdims = 0>(s)
        [u] u = ReduceSum<keepdims = 0>(n)
        [y] y = Add(t, u)
    }""")
    # LayerNormalization could run three times, once for each output.
    assert floor.nbytes == 3 * KIB
    assert floor.plain.node != ABSENT


def test_all_graph_outputs_are_there_at_the_end() -> None:
    graph, floor = floor_of("""
    g (float[256] x) => (float[256] p, float[256] q, float[256] r, float[256] s)
    {
        [p] p = Neg(x)
        [q] q = Neg(x)
        [r] r = Neg(x)
        [s] s = Neg(x)
    }""")
    assert floor.plain.node == ABSENT
    assert floor.nbytes == 4 * KIB
    assert pinned(graph, floor) == ["p", "q", "r", "s"]
    assert floor.plain.describe(graph) == (
        "the graph outputs, held to the end: p (1.00 KiB), q (1.00 KiB), r (1.00 KiB) and 1 more "
        "(1.00 KiB)"
    )


def test_graph_outputs_behind_a_node_are_held_when_it_runs() -> None:
    graph, floor = floor_of(
        """
    g (float[256] x) => (float[256] early, float[256] aside, float[1] y) <int64[1] first = {0}>
    {
        [early] early = Neg(x)
        [a] a = ReduceSum(early, first)
        [aside] aside = Exp(x)
        [b] b = Expand(a, wide)
        [c] c = Exp(b)
        [y] y = ReduceSum(c, first)
    }""".replace("<int64[1] first", "<int64[1] wide = {512}, int64[1] first")
    )
    # c needs b and itself, and early is behind it; aside could wait.
    assert floor.plain.node == node(graph, "c").id
    assert pinned(graph, floor) == ["early", "b", "c"]
    assert floor.nbytes == 5 * KIB


def test_a_graph_output_that_is_a_view_is_a_second_copy() -> None:
    _, floor = floor_of("""
    g (float[256] x) => (float[16,16] y) <int64[2] square = {16, 16}>
    {
        [a] a = Neg(x)
        [y] y = Reshape(a, square)
    }""")
    assert floor.nbytes == 2 * KIB


def test_workspace_raises_the_bound_for_budgets_only() -> None:
    graph, floor = floor_of("""
    g (float[4,64] x) => (float y)
    {
        [a] a = Neg(x)
        [s] s = Softmax<axis = 0>(a)
        [b] b = Exp(s)
        [y] y = ReduceSum<keepdims = 0>(b)
    }""")
    assert floor.nbytes == 2 * KIB
    assert floor.with_workspace == 3 * KIB  # Softmax in place, with two transposed copies
    assert floor.plain.node == node(graph, "b").id
    assert floor.loaded.node == node(graph, "s").id
    assert floor.loaded.describe(graph) == (
        "Softmax s, which needs its workspace, predicted only (2.00 KiB), a (1.00 KiB) at once"
    )


def test_what_a_loop_holds_inside_counts() -> None:
    text = """
    g (float[256] x) => (float[1] y) <int64 trips = {3}, bool go = {1}, int64[1] first = {0}>
    {
        [a] a = ReduceSum(x, first)
        [loop] last = Loop <body = step (int64 i, bool c, float[1] s) => (bool more, float[1] next)
        {
            more = Identity(c)
            size = Constant<value_ints = [512]>()
            axes = Constant<value_ints = [0]>()
            wide = Expand(s, size)
            next = ReduceSum(wide, axes)
        }> (trips, go, a)
        [y] y = Neg(last)
    }"""
    graph, floor = floor_of(text)
    assert floor.plain.node == node(graph, "loop").id
    # The widened state and the new one, the state of the iteration before and 9 bytes of
    # counters; the node's own output is one of these. And its input.
    assert floor.nbytes == 2 * KIB + 4 + 4 + 9 + 4


def test_an_empty_working_set() -> None:
    graph, floor = floor_of("g (float[256] x) => (float[256] x) { [a] a = Shape(x) }")
    assert (floor.nbytes, names(graph, [floor.plain.node])) == (8, ["a"])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(random_models(), st.randoms(use_true_random=False))
def test_no_order_of_a_random_graph_goes_below(model: onnx.ModelProto, draw: Random) -> None:
    graph = open_text(model).graph
    floor = structural_floor(graph, simulate(graph, TUNED))
    bodies = bodies_of(graph, TUNED)
    workspace, _ = node_workspace(graph, TUNED, bodies)
    inside = bodies.nbytes
    for pin in (floor.plain, floor.loaded):
        held = sum(graph.tensors[t].nbytes for t in pin.tensors)
        assert pin.nbytes == held + pin.workspace + pin.inside
    for order in (list(range(len(graph.nodes))), random_order(graph, draw)):
        dynamic = live_bytes(allocate(graph, order, TUNED))
        for step, index in enumerate(order):
            dynamic[step] += inside.get(index, 0)
        assert floor.nbytes <= dynamic.max()
        assert floor.with_workspace <= (dynamic + workspace[order]).max()


def test_a_view_that_is_a_graph_output_is_a_tensor_of_its_own() -> None:
    """The runtime copies it, so who reads it does not need what it was made of."""
    graph, floor = floor_of("""
    g (float[256] x) => (float[16,16] y, float z) <int64[2] square = {16, 16}>
    {
        [a] a = Neg(x)
        [v] y = Reshape(a, square)
        [b] b = Exp(y)
        [z] z = ReduceSum<keepdims = 0>(b)
    }""")
    assert floor.nbytes == 2 * KIB + 4
    assert sorted(pinned(graph, floor)) == ["b", "y", "z"]
