"""The certified floor: right on hand-made graphs, and below every schedule of random ones."""

from random import Random

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.graphs import KIB, TUNED, graph_of, on_x, open_text, random_order
from helpers.random_graphs import models as random_models
from memplan.simulate.allocation import allocate
from memplan.simulate.floor import structural_floor
from memplan.simulate.timeline import bodies_of, live_bytes, node_workspace, simulate

# By name: the graph; the node that pins the floor, by what it makes, and what it needs at once, as
# told; KiB of it, and with workspace where that is more.
FLOORS: dict[str, tuple[str, str, float, float]] = {
    # In the file's order c lies beside them; another order, or running c again, avoids that.
    "inputs and outputs of one node": (
        on_x("a = Neg(x) b = Neg(x) c = Neg(x) [join] d = Add(a, b) y = Add(d, c)"),
        "Add join, which needs a (1.00 KiB), b (1.00 KiB), d (1.00 KiB) at once",
        3,
        3,
    ),
    "resident tensors are not counted": (
        on_x("a = Add(x, w) [y] y = ReduceSum(a, first)", "float[1] y"),
        "ReduceSum y, which needs a (1.00 KiB), y (4 B) at once",
        1 + 4 / KIB,
        1 + 4 / KIB,
    ),
    "an output that may take its input over counts once": (
        on_x("a = Neg(x) b = Relu(a) [y] y = ReduceSum(b, first)", "float[1] y"),
        "ReduceSum y, which needs b (1.00 KiB), y (4 B) at once",
        1 + 4 / KIB,
        1 + 4 / KIB,
    ),
    "and twice where it may not": (
        on_x("a = Neg(x) [b] b = Exp(a) y = ReduceSum(b, first)", "float[1] y"),
        "Exp b, which needs a (1.00 KiB), b (1.00 KiB) at once",
        2,
        2,
    ),
    "views count as what they show": (
        on_x(
            """a = Neg(x) v = Reshape(a, square) u = Reshape(v, flat) [twice] b = Mul(a, u)
            y = ReduceSum<keepdims = 0>(b)""",
            "float y",
        ),
        "Mul twice, which needs a (1.00 KiB), b (1.00 KiB) at once",
        2,
        2,
    ),
    # LayerNormalization could run three times, once for each output.
    "optional outputs are not counted": (
        """g (float[256,1] x) => (float y) <float[1] one = {1}> {
        a = Neg(x) [norm] n, mean, deviation = LayerNormalization(a, one)
        [s] s = Add(mean, deviation)
        t = ReduceSum<keepdims = 0>(s) u = ReduceSum<keepdims = 0>(n) y = Add(t, u) }""",
        "Add s, which needs mean (1.00 KiB), deviation (1.00 KiB), s (1.00 KiB) at once",
        3,
        3,
    ),
    "all graph outputs are there at the end": (
        on_x(
            "p = Neg(x) q = Neg(x) r = Neg(x) s = Neg(x)",
            "float[256] p, float[256] q, float[256] r, float[256] s",
        ),
        "the graph outputs, held to the end: p (1.00 KiB), q (1.00 KiB), r (1.00 KiB) "
        "and 1 more (1.00 KiB)",
        4,
        4,
    ),
    # c needs b and itself, and early is behind it; aside could wait.
    "graph outputs behind a node are held when it runs": (
        on_x(
            """early = Neg(x) a = ReduceSum(early, first) aside = Exp(x) b = Expand(a, wide)
            [c] c = Exp(b) y = ReduceSum(c, first)""",
            "float[256] early, float[256] aside, float[1] y",
        ),
        "Exp c, which needs b (10.0 KiB), c (10.0 KiB), early (1.00 KiB) at once",
        21,
        21,
    ),
    "a graph output that is a view is a second copy": (
        on_x("a = Neg(x) [y] y = Reshape(a, square)", "float[16,16] y"),
        "Reshape y, which needs a (1.00 KiB), y (1.00 KiB) at once",
        2,
        2,
    ),
    # The runtime copies it, so who reads it does not need what it was made of.
    "and a tensor of its own": (
        on_x(
            "a = Neg(x) y = Reshape(a, square) [b] b = Exp(y) z = ReduceSum<keepdims = 0>(b)",
            "float[16,16] y, float z",
        ),
        "ReduceSum ReduceSum_3, which needs y (1.00 KiB), b (1.00 KiB), z (4 B) at once",
        2 + 4 / KIB,
        2 + 4 / KIB,
    ),
    # Softmax in place, with two transposed copies.
    "workspace raises the bound for budgets only": (
        on_x(
            "a = Neg(x) [s] s = Softmax<axis = 0>(a) [b] b = Exp(s) y = ReduceSum<keepdims = 0>(b)",
            "float y",
            "float[4,64] x",
        ),
        "Exp b, which needs s (1.00 KiB), b (1.00 KiB) at once",
        2,
        3,
    ),
    # The widened state and the new one, the state of the iteration before and 9 bytes of counters;
    # the node's own output is one of these. And its input.
    "what a loop holds inside": (
        """g (float[256] x) => (float[1] y) <int64 trips = {3}, bool go = {1}, int64[1] first = {0}>
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
    }""",
        "Loop loop, which needs its body (2.01 KiB), a (4 B), last (4 B) at once",
        2 + 21 / KIB,
        2 + 21 / KIB,
    ),
    "an empty working set": (
        "g (float[256] x) => (float[256] x) { [a] a = Shape(x) }",
        "Shape a, which needs a (8 B) at once",
        8 / KIB,
        8 / KIB,
    ),
}


@pytest.mark.parametrize("name", FLOORS)
def test_what_pins_the_floor(name: str) -> None:
    text, told, nbytes, loaded = FLOORS[name]
    graph = graph_of(text)
    floor = structural_floor(graph, simulate(graph, TUNED))
    assert floor.plain.describe(graph) == told
    assert (floor.nbytes / KIB, floor.with_workspace / KIB) == (nbytes, loaded)


def test_workspace_is_told() -> None:
    graph = graph_of(FLOORS["workspace raises the bound for budgets only"][0])
    assert structural_floor(graph, simulate(graph, TUNED)).loaded.describe(graph) == (
        "Softmax s, which needs its workspace, predicted only (2.00 KiB), a (1.00 KiB) at once"
    )


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
