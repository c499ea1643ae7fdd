"""Buffers and bytes by hand, one rule of ONNX Runtime's allocator after the other.

``float[256]`` is 1 KiB; figures are KiB at the end of every step, dead inputs still counted.
"""

import pytest

from helpers.graphs import KIB, REUSING, TUNED, graph_of, kib, on_x, tensor, timeline_of
from memplan.simulate.allocation import allocate, passes_through
from memplan.simulate.session import SessionKind
from memplan.simulate.timeline import Timeline, simulate

CUDA = SessionKind("tuned", "cuda", priority_order=True, reuse=False)
SCALAR = 4 / KIB


def drawn(timeline: Timeline) -> str:
    """All buffers: their tensors, and the steps from the first to the one before they are free."""
    names = [tensor.name for tensor in timeline.graph.tensors]
    return ", ".join(
        f"{'='.join(names[t] for t in buffer.members)} {buffer.birth}-{buffer.death}"
        for buffer in timeline.allocation.buffers
    )


# By name: the graph, its buffers, and KiB step by step.
RULES: dict[str, tuple[str, str, list[float]]] = {
    # Rule 1: graph outputs. Relu works in place, but not into one.
    "a graph output has a buffer of its own held to the end": (
        on_x("a = Neg(x) y = Relu(a) b = Neg(x) z = Neg(b)", "float[256] y, float[256] z"),
        "a 0-2, y 1-4, b 2-4, z 3-4",
        [1, 2, 2, 3],
    ),
    "a view that is a graph output is a copy": (
        on_x("a = Neg(x) y = Reshape(a, square) z = Exp(a)", "float[16,16] y, float[256] z"),
        "a 0-3, y 1-3, z 2-3",
        [1, 2, 3],
    ),
    "a graph output that is read on can be shared but not overwritten": (
        on_x(
            "y = Neg(x) v = Reshape(y, square) r = Relu(v) z = Exp(r)",
            "float[256] y, float[16,16] z",
        ),
        "y=v 0-4, r 2-4, z 3-4",
        [1, 1, 2, 3],
    ),
    # Rule 2: views.
    "views share and the buffer lives to the last reader of any member": (
        on_x("""a = Neg(x) v = Reshape(a, square) w0 = Unsqueeze(v, first) b = Exp(a) c = Neg(b)
            s = ReduceSum<keepdims = 0>(w0) y = Add(c, s)"""),
        "a=v=w0 0-6, b 3-5, c 4-7, s 5-7, y 6-7",
        [1, 1, 1, 2, 3, 2 + SCALAR, 2 + SCALAR],
    ),
    "views of inputs and weights take nothing and are never overwritten": (
        on_x(
            "v = Reshape(x, square) u = Reshape(w, square) r = Relu(v) y = Add(r, u)",
            "float[16,16] y",
        ),
        "r 2-4, y 3-4",
        [0, 0, 1, 2],
    ),
    # Rule 3: in place.
    "in place for the last reader": (
        on_x("a = Neg(x) b = Exp(a) r = Relu(a) s = Sigmoid(r) y = Add(s, b)"),
        "a=r=s 0-5, b 1-5, y 4-5",
        [1, 2, 2, 2, 3],
    ),
    "not in place while another reader follows": (
        on_x("a = Neg(x) r = Relu(a) b = Exp(a) y = Add(r, b)"),
        "a 0-3, r 1-4, b 2-4, y 3-4",
        [1, 2, 3, 3],
    ),
    "not in place while a view of the input is read later": (
        on_x("""a = Neg(x) v = Reshape(a, square) r = Relu(a) b = Exp(v) c = Reshape(b, flat)
            y = Add(r, c)"""),
        "a=v 0-4, r 2-6, b=c 3-6, y 5-6",
        [1, 1, 2, 3, 2, 3],
    ),
    "in place through a view": (
        on_x("a = Neg(x) v = Reshape(a, square) r = Relu(v) y = Exp(r)", "float[16,16] y"),
        "a=v=r 0-4, y 3-4",
        [1, 1, 1, 2],
    ),
    "never over an input or a weight": (
        on_x("r = Relu(x) s = Relu(w) y = Add(r, s)"),
        "r 0-3, s 1-3, y 2-3",
        [1, 2, 3],
    ),
    "in place of elements of equal size": (
        on_x("a = Neg(x) c = Cast<to = 6>(a) y = Cast<to = 1>(c)"),
        "a=c 0-3, y 2-3",
        [1, 1, 2],
    ),
    "not of twice the size": (
        on_x("a = Neg(x) c = Cast<to = 11>(a) y = Cast<to = 1>(c)"),
        "a 0-2, c 1-3, y 2-3",
        [1, 3, 3],
    ),
    "not of a quarter": (
        on_x("a = Neg(x) c = Cast<to = 9>(a) y = Cast<to = 1>(c)"),
        "a 0-2, c 1-3, y 2-3",
        [1, 1.25, 1.25],
    ),
    "over the first of two inputs": (
        on_x("a = Neg(x) b = Neg(x) s = ScatterElements(a, places, b) y = Add(s, b)"),
        "a=s 0-4, b 1-4, y 3-4",
        [1, 2, 2, 3],
    ),
    "an input in two slots is read twice and never overwritten": (
        on_x("a = Neg(x) b = Neg(x) s = ScatterElements(a, places, a) y = Add(s, b)"),
        "a 0-3, b 1-4, s 2-4, y 3-4",
        [1, 2, 3, 3],
    ),
    "a product of a tensor with itself is not in place": (
        on_x("a = Neg(x) m = Mul(a, a) y = Neg(m)"),
        "a 0-2, m 1-3, y 2-3",
        [1, 2, 2],
    ),
    "a softmax is in place": (
        on_x("a = Neg(x) s = Softmax<axis = 0>(a) y = Neg(s)"),
        "a=s 0-3, y 2-3",
        [1, 1, 2],
    ),
    # Rule 5: release.
    "an unread output is held to the end": (
        on_x(
            "p, unread = Split<axis = 0, num_outputs = 2>(x) b = Neg(p) c = Neg(b) y = Neg(c)",
            "float[1,256] y",
            "float[2,256] x",
        ),
        "p 0-2, unread 0-4, b 1-3, c 2-4, y 3-4",
        [2, 3, 3, 3],
    ),
    "a buffer is released after the step of its last reader": (
        on_x("a = Neg(x) b = Exp(a) y = Neg(a) z = Neg(b)", "float[256] y, float[256] z"),
        "a 0-3, b 1-4, y 2-4, z 3-4",
        [1, 2, 3, 3],
    ),
    # Behind a fence, memplan knows it, and the runtime only when it runs.
    "what is known is taken over": (
        on_x(
            "v = Neg(x) a = Exp(v) b = Relu(a) c = Exp(b) y = ReduceSum<keepdims = 0>(c)", "float y"
        ),
        "v 0-2, a=b 1-4, c 3-5, y 4-5",
        [1, 2, 1, 2, 1 + SCALAR],
    ),
    "nothing is taken over where the runtime does not know the shape": (
        on_x(
            """n = Size(x) axes = Mul(n, none) v = Unsqueeze(x, axes) a = Exp(v) b = Relu(a)
            c = Exp(b) y = ReduceSum<keepdims = 0>(c)""",
            "float y",
        ),
        "n 0-2, axes 1-3, a 3-5, b 4-6, c 5-7, y 6-7",
        [0.0078125, 0.0078125, 0, 1, 2, 2, 1 + SCALAR],
    ),
}
LONG = "a = Neg(x) b = Exp(a) c = Neg(b) d = Exp(c) y = Neg(d)"
SUMMED = """a = Neg(x) s = ReduceSum<keepdims = 0>(a) big = Expand(s, wide)
    t = ReduceSum<keepdims = 0>(big) c = Add(x, t) y = Neg(c)"""
SQUARED = (
    "a = Neg(x) t = ReduceSum<keepdims = 0>(a) c = Expand(t, {0}) y = ReduceSum<keepdims = 0>(c)"
)
# Rule 4: where freed buffers are reused. The price is a buffer that is kept from one tensor's death
# to another's birth.
REUSED: dict[str, tuple[str, str, list[float]]] = {
    "a freed buffer is taken over and lives on": (
        on_x(LONG),
        "a=c 0-4, b=d 1-5, y 4-5",
        [1, 2, 2, 2, 2],
    ),
    # Of the scalars each has its own buffer: rank 0 is never reused.
    "reuse keeps a dead buffer over the gap": (
        on_x(SUMMED),
        "a=c 0-6, s 1-3, big 2-4, t 3-5, y 5-6",
        [1, 1 + SCALAR, 11 + SCALAR, 11 + SCALAR, 1 + SCALAR, 2],
    ),
    "the most recently freed buffer is taken": (
        on_x(
            """a = Neg(x) b = Neg(z) w0 = Exp(a) y = Exp(b) c = Neg(x) d = Neg(c) e = Add(c, d)
            s = ReduceSum<keepdims = 0>(e) t = Neg(s)""",
            "float[256] y, float[256] w0",
            "float[256] x, float[256] z",
        ),
        "a=d 0-7, b=c 1-7, w0 2-9, y 3-9, e 6-8, s 7-9, t 8-9",
        [1, 2, 3, 4, 4, 4, 5, 3 + SCALAR, 2.0078125],
    ),
    "other dimensions are not reused though the bytes are equal": (
        on_x(SQUARED.format("square"), "float y"),
        "a 0-2, t 1-3, c 2-4, y 3-4",
        [1, 1 + SCALAR, 1 + SCALAR, 1 + SCALAR],
    ),
    "the same dimensions are": (
        on_x(SQUARED.format("flat"), "float y"),
        "a=c 0-4, t 1-3, y 3-4",
        [1, 1 + SCALAR, 1 + SCALAR, 1 + SCALAR],
    ),
    # It is free for the next tensor at once, but takes nothing over itself.
    "what nobody reads takes no freed buffer": (
        on_x(
            """p, free, q = Split<axis = 0, num_outputs = 3>(x) r = Neg(p)
            s, unread = Split<axis = 0, num_outputs = 2>(z) t = Neg(s) y = Add(r, t)""",
            "float[1,256] y",
            "float[3,256] x, float[2,256] z",
        ),
        "p=s 0-4, free 0-5, q=r 0-5, unread=t 2-5, y 4-5",
        [3, 3, 4, 4, 4],
    ),
    "nor where the runtime does not know the shape": (
        on_x(
            """n = Size(x) axes = Mul(n, none) v = Unsqueeze(x, axes) a = Exp(v) b = Relu(a)
            c = Exp(b) y = ReduceSum<keepdims = 0>(c)""",
            "float y",
        ),
        "n 0-2, axes 1-3, a 3-5, b 4-6, c 5-7, y 6-7",
        [0.0078125, 0.0078125, 0, 1, 2, 2, 1 + SCALAR],
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule(name: str) -> None:
    text, buffers, nbytes = RULES[name]
    found = timeline_of(text)
    assert (drawn(found), kib(found)) == (buffers, nbytes)


@pytest.mark.parametrize("name", REUSED)
def test_a_rule_of_reuse(name: str) -> None:
    text, buffers, nbytes = REUSED[name]
    found = timeline_of(text, REUSING)
    assert (drawn(found), kib(found)) == (buffers, nbytes)


def test_providers_differ_in_what_works_in_place() -> None:
    assert kib(timeline_of(RULES["a softmax is in place"][0], CUDA)) == [1, 2, 2]


def test_without_reuse_there_is_no_gap() -> None:
    assert kib(timeline_of(on_x(LONG))) == [1, 2, 2, 2, 2]
    assert kib(timeline_of(on_x(SUMMED))) == [
        1,
        1 + SCALAR,
        10 + SCALAR,
        10 + SCALAR,
        1 + SCALAR,
        2,
    ]


def test_workspace_is_counted_beside_the_tensors() -> None:
    found = timeline_of("""
    g (float[4,64] x) => (float[4,64] y)
    {
        [a] a = Neg(x)
        [s] s = Softmax<axis = 0>(a)
        [y] y = Neg(s)
    }""")
    assert kib(found) == [1, 1, 2]
    assert (found.workspace / KIB).tolist() == [0, 2, 0]
    assert found.dynamic_peak_bytes == 2 * KIB
    assert found.peak_bytes == 3 * KIB
    assert found.peak_with_workspace_bytes == 4 * KIB
    assert found.peak_step == 2


# Loop bodies.

LOOP = """
g (float[256] x) => (float[256] y) <int64 trips = {3}, bool go = {1}>
{
    [a] a = Neg(x)
    [loop] last = Loop <body = step (int64 i, bool c, float[256] s) => (bool more, float[256] next)
    {
        more = Identity(c)
        NEXT
    }> (trips, go, a)
    [y] y = Neg(last)
}"""


def test_a_loop_body_that_hands_its_state_on_copies_nothing() -> None:
    found = graph_of(LOOP.replace("NEXT", "next = Identity(s)"))
    body = found.bodies[1][0].graph
    assert body.parent_op == "Loop"
    inner = simulate(body, TUNED)
    assert passes_through(body, tensor(body, "next").id)
    assert passes_through(body, tensor(body, "more").id)
    assert inner.dynamic.tolist() == [0, 0]
    # Nothing but the iteration number and the condition is in the body; the node's output covers
    # them.
    assert kib(simulate(found, TUNED)) == [1, 2, 2]


def test_a_loop_body_that_makes_its_state_holds_it_beside_the_last_one() -> None:
    found = graph_of(LOOP.replace("NEXT", "t = Neg(s)\n next = Neg(t)"))
    body = found.bodies[1][0].graph
    assert body is not None
    assert not passes_through(body, tensor(body, "next").id)
    assert kib(simulate(body, TUNED)) == [0, 1, 2]
    # The last iteration's two tensors and the state of the one before, 9 bytes of counters; of
    # these the node's own output is one.
    assert kib(simulate(found, TUNED)) == [1, 1 + 3 + 9 / KIB, 2]


def test_the_iteration_number_is_copied() -> None:
    text = """
    g (int64 start) => (int64 y) <int64 trips = {3}, bool go = {1}>
    {
        [loop] last = Loop <body = step (int64 i, bool c, int64 s) => (bool more, int64 next)
        {
            more = Identity(c)
            next = Identity(i)
        }> (trips, go, start)
        [y] y = Neg(last)
    }"""
    body = graph_of(text).bodies[0][0].graph
    assert body is not None
    assert not passes_through(body, tensor(body, "next").id)
    assert simulate(body, TUNED).dynamic.tolist() == [0, 8]


def test_an_identity_outside_of_loops_is_copied_into_a_graph_output() -> None:
    found = timeline_of("g (float z, float[256] x) => (float[256] y) { [y] y = Identity(x) }")
    assert not passes_through(found.graph, tensor(found.graph, "y").id)
    assert kib(found) == [1]


# Branches of an If.


def nested(depth: int) -> str:
    """An If in an If in an If..., each of whose branches makes 1 KiB beside its output."""
    branch = "[last] r = Neg(x)"
    for level in range(depth):
        inner = f"r{level}" if level < depth - 1 else "y"
        branch = f"""
        [if_{level}] {inner} = If<
            then_branch = t () => (float[256] r) {{ {branch} }},
            else_branch = e () => (float[256] q) {{ [a{level}] a = Exp(x) [q{level}] q = Sin(a) }}
        >(c)"""
        if level < depth - 1:
            branch += f" [n{level}] r = Neg({inner})"
    return f"g (float[256] x, bool c) => (float[256] y) {{ {branch} }}"


def test_the_outputs_of_an_if_are_there_before_a_branch_makes_them() -> None:
    """The branch holds two tensors and then makes its output of their sum, beside ``u``."""
    timeline = timeline_of("""
    g (float[256] x, bool c) => (float y)
    {
        [pick] u = If<
            then_branch = t () => (float[256] r)
                { [a] a = Sin(x) [b] b = Cos(x) [m] m = Add(a, b) [r] r = Neg(m) },
            else_branch = e () => (float[256] q) { [q] q = Neg(x) }
        >(c)
        [y] y = ReduceSum<keepdims = 0>(u)
    }""")
    assert kib(timeline)[0] == 1 + 3
    assert dict(timeline.inside.nbytes) == {0: 3 * KIB}


def test_bodies_are_simulated_once_however_deep_they_nest(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = []

    def counted(*args: object) -> object:
        simulated.append(args)
        return allocate(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("memplan.simulate.timeline.allocate", counted)
    timeline = timeline_of(nested(12))
    assert len(simulated) == 1 + 2 * 12
    assert timeline.dynamic_peak_bytes == 13 * KIB  # at the innermost branch: all outputs around it
