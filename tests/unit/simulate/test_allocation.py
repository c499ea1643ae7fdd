"""Buffers and bytes by hand, one rule of ONNX Runtime's allocator after the other.

``float[256]`` is 1 KiB; figures are KiB at the end of every step, dead inputs still counted.
"""

from __future__ import annotations

import pytest

from helpers.graphs import KIB, REUSING, TUNED, graph_of, kib, tensor, timeline_of
from memplan.ir.graph import ABSENT
from memplan.simulate.allocation import Buffer, allocate, passes_through
from memplan.simulate.session import SessionKind
from memplan.simulate.timeline import Timeline, simulate

ZEROS = "{" + ", ".join(["0"] * 256) + "}"


def buffer(timeline: Timeline, name: str) -> Buffer | None:
    """The buffer that a tensor lives in; None for resident ones."""
    index = timeline.allocation.buffer_of[tensor(timeline.graph, name).id]
    return None if index == ABSENT else timeline.allocation.buffers[index]


def life(timeline: Timeline, name: str) -> tuple[int, int]:
    """Birth and death of the buffer that a tensor lives in."""
    found = buffer(timeline, name)
    assert found is not None
    return found.birth, found.death


def members(timeline: Timeline, name: str) -> list[str]:
    """Names of all tensors in that tensor's buffer."""
    found = buffer(timeline, name)
    assert found is not None
    return [timeline.graph.tensors[t].name for t in found.members]


# Rule 1: graph outputs.


def test_a_graph_output_has_a_buffer_of_its_own_held_to_the_end() -> None:
    found = timeline_of("""
    g (float[256] x) => (float[256] y, float[256] z)
    {
        [a] a = Neg(x)
        [y] y = Relu(a)
        [b] b = Neg(x)
        [z] z = Neg(b)
    }""")
    # Relu works in place, but not into a graph output.
    assert members(found, "y") == ["y"]
    assert life(found, "a") == (0, 2)
    assert life(found, "y") == (1, 4)
    assert kib(found) == [1, 2, 2, 3]
    assert found.resident_bytes == KIB


def test_a_view_that_is_a_graph_output_is_a_copy() -> None:
    found = timeline_of("""
    g (float[256] x) => (float[16,16] y, float[256] z) <int64[2] square = {16, 16}>
    {
        [a] a = Neg(x)
        [y] y = Reshape(a, square)
        [z] z = Exp(a)
    }""")
    assert members(found, "y") == ["y"]
    assert kib(found) == [1, 2, 3]


def test_a_graph_output_that_is_read_on_can_be_shared_but_not_overwritten() -> None:
    found = timeline_of("""
    g (float[256] x) => (float[256] y, float[16,16] z) <int64[2] square = {16, 16}>
    {
        [y] y = Neg(x)
        [view] v = Reshape(y, square)
        [relu] r = Relu(v)
        [z] z = Exp(r)
    }""")
    assert members(found, "v") == ["y", "v"]
    assert members(found, "r") == ["r"]
    assert kib(found) == [1, 1, 2, 3]


# Rule 2: views.


def test_views_share_and_the_buffer_lives_to_the_last_reader_of_any_member() -> None:
    found = timeline_of("""
    g (float[256] x) => (float[256] y) <int64[2] square = {16, 16}, int64[1] first = {0}>
    {
        [a] a = Neg(x)
        [v] v = Reshape(a, square)
        [w] w = Unsqueeze(v, first)
        [b] b = Exp(a)
        [c] c = Neg(b)
        [s] s = ReduceSum<keepdims = 0>(w)
        [y] y = Add(c, s)
    }""")
    assert members(found, "w") == ["a", "v", "w"]
    assert life(found, "a") == (0, 6)
    assert [nbytes - int(step >= 5) * 4 / KIB for step, nbytes in enumerate(kib(found))] == [
        1,
        1,
        1,
        2,
        3,
        2,
        2,
    ]


def test_views_of_inputs_and_weights_take_nothing_and_are_never_overwritten() -> None:
    found = timeline_of(
        """
    g (float[256] x) => (float[16,16] y) <int64[2] square = {16, 16}, float[256] w = WEIGHTS>
    {
        [v] v = Reshape(x, square)
        [u] u = Reshape(w, square)
        [r] r = Relu(v)
        [y] y = Add(r, u)
    }""".replace("WEIGHTS", ZEROS)
    )
    assert buffer(found, "v") is None
    assert buffer(found, "u") is None
    assert members(found, "r") == ["r"]
    assert kib(found) == [0, 0, 1, 2]


# Rule 3: in place.


def test_in_place_for_the_last_reader() -> None:
    found = timeline_of("""
    g (float[256] x) => (float[256] y)
    {
        [a] a = Neg(x)
        [b] b = Exp(a)
        [r] r = Relu(a)
        [s] s = Sigmoid(r)
        [y] y = Add(s, b)
    }""")
    assert members(found, "a") == ["a", "r", "s"]
    assert kib(found) == [1, 2, 2, 2, 3]


def test_not_in_place_while_another_reader_follows() -> None:
    found = timeline_of("""
    g (float[256] x) => (float[256] y)
    {
        [a] a = Neg(x)
        [r] r = Relu(a)
        [b] b = Exp(a)
        [y] y = Add(r, b)
    }""")
    assert members(found, "r") == ["r"]
    assert kib(found) == [1, 2, 3, 3]


def test_not_in_place_while_a_view_of_the_input_is_read_later() -> None:
    found = timeline_of("""
    g (float[256] x) => (float[256] y) <int64[2] square = {16, 16}, int64[1] flat = {256}>
    {
        [a] a = Neg(x)
        [v] v = Reshape(a, square)
        [r] r = Relu(a)
        [b] b = Exp(v)
        [c] c = Reshape(b, flat)
        [y] y = Add(r, c)
    }""")
    assert members(found, "r") == ["r"]
    assert life(found, "a") == (0, 4)


def test_in_place_through_a_view() -> None:
    found = timeline_of("""
    g (float[256] x) => (float[16,16] y) <int64[2] square = {16, 16}>
    {
        [a] a = Neg(x)
        [v] v = Reshape(a, square)
        [r] r = Relu(v)
        [y] y = Exp(r)
    }""")
    assert members(found, "a") == ["a", "v", "r"]
    assert kib(found) == [1, 1, 1, 2]


def test_never_over_an_input_or_a_weight() -> None:
    found = timeline_of(
        """
    g (float[256] x) => (float[256] y) <float[256] w = WEIGHTS>
    {
        [r] r = Relu(x)
        [s] s = Relu(w)
        [y] y = Add(r, s)
    }""".replace("WEIGHTS", ZEROS)
    )
    assert kib(found) == [1, 2, 3]


@pytest.mark.parametrize(
    ("to", "shared", "bytes_of_c"), [(6, True, 1), (11, False, 2), (9, False, 0.25)]
)
def test_in_place_needs_elements_of_equal_size(to: int, shared: bool, bytes_of_c: float) -> None:
    found = timeline_of(f"""
    g (float[256] x) => (float[256] y)
    {{
        [a] a = Neg(x)
        [cast] c = Cast<to = {to}>(a)
        [y] y = Cast<to = 1>(c)
    }}""")
    assert (members(found, "a") == ["a", "c"]) is shared
    assert kib(found) == [1, 1 if shared else 1 + bytes_of_c, bytes_of_c + 1]


def test_an_input_in_two_slots_is_read_twice_and_never_overwritten() -> None:
    text = """
    g (float[256] x) => (float[256] y) <int64[256] places = WEIGHTS>
    {
        [a] a = Neg(x)
        [b] b = Neg(x)
        [scatter] s = ScatterElements(a, places, UPDATES)
        [y] y = Add(s, b)
    }""".replace("WEIGHTS", ZEROS)
    once = timeline_of(text.replace("UPDATES", "b"))
    twice = timeline_of(text.replace("UPDATES", "a"))
    assert members(once, "s") == ["a", "s"]
    assert members(twice, "s") == ["s"]
    assert kib(once) == [1, 2, 2, 3]
    assert kib(twice) == [1, 2, 3, 3]


def test_a_product_of_a_tensor_with_itself_is_not_in_place() -> None:
    found = timeline_of("""
    g (float[256] x) => (float[256] y)
    {
        [a] a = Neg(x)
        [m] m = Mul(a, a)
        [y] y = Neg(m)
    }""")
    assert life(found, "a") == (0, 2)
    assert kib(found) == [1, 2, 2]


def test_providers_differ_in_what_works_in_place() -> None:
    text = """
    g (float[256] x) => (float[256] y)
    {
        [a] a = Neg(x)
        [s] s = Softmax<axis = 0>(a)
        [y] y = Neg(s)
    }"""
    cuda = SessionKind("tuned", "cuda", priority_order=True, reuse=False)
    assert kib(timeline_of(text)) == [1, 1, 2]
    assert kib(timeline_of(text, cuda)) == [1, 2, 2]


# Rule 4: reuse of freed buffers.

REUSE = """
g (float[256] x) => (float[256] y)
{
    [a] a = Neg(x)
    [b] b = Exp(a)
    [c] c = Neg(b)
    [d] d = Exp(c)
    [y] y = Neg(d)
}"""


def test_a_freed_buffer_is_taken_over_and_lives_on() -> None:
    tuned, reusing = timeline_of(REUSE), timeline_of(REUSE, REUSING)
    assert [len(b.members) for b in tuned.allocation.buffers] == [1, 1, 1, 1, 1]
    assert members(reusing, "a") == ["a", "c"]
    assert members(reusing, "b") == ["b", "d"]
    # The price: a's buffer is kept from a's death to c's birth, and to c's last reader.
    assert life(reusing, "a") == (0, 4)
    assert life(reusing, "b") == (1, 5)
    assert kib(tuned) == [1, 2, 2, 2, 2]
    assert kib(reusing) == [1, 2, 2, 2, 2]


def test_reuse_keeps_a_dead_buffer_over_the_gap() -> None:
    text = """
    g (float[256] x) => (float[256] y)
    {
        [a] a = Neg(x)
        [b] s = ReduceSum<keepdims = 0>(a)
        [big] big = Expand(s, wide)
        [small] t = ReduceSum<keepdims = 0>(big)
        [c] c = Add(x, t)
        [y] y = Neg(c)
    }""".replace("float[256] y)", "float[256] y) <int64[1] wide = {2560}>")
    scalar = 4 / KIB
    assert kib(timeline_of(text)) == [1, 1 + scalar, 10 + scalar, 10 + scalar, 1 + scalar, 2]
    assert members(timeline_of(text, REUSING), "t") == ["t"]
    # Of the scalars each has its own buffer: rank 0 is never reused.
    assert kib(timeline_of(text, REUSING)) == [
        1,
        1 + scalar,
        11 + scalar,
        11 + scalar,
        1 + scalar,
        2,
    ]


def test_the_most_recently_freed_buffer_is_taken() -> None:
    found = timeline_of(
        """
    g (float[256] x, float[256] z) => (float[256] y, float[256] w)
    {
        [a] a = Neg(x)
        [b] b = Neg(z)
        [after_a] w = Exp(a)
        [after_b] y = Exp(b)
        [c] c = Neg(x)
        [d] d = Neg(c)
        [e] e = Add(c, d)
        [s] s = ReduceSum<keepdims = 0>(e)
        [t] t = Neg(s)
    }""",
        REUSING,
    )
    assert members(found, "c") == ["b", "c"]
    assert members(found, "d") == ["a", "d"]


def test_other_dimensions_are_not_reused_though_the_bytes_are_equal() -> None:
    text = """
    g (float[256] x) => (float y) <int64[2] square = {16, 16}>
    {
        [a] a = Neg(x)
        [t] t = ReduceSum<keepdims = 0>(a)
        [c] c = Expand(t, square)
        [y] y = ReduceSum<keepdims = 0>(c)
    }"""
    assert members(timeline_of(text, REUSING), "c") == ["c"]
    same = text.replace("int64[2] square = {16, 16}", "int64[1] square = {256}")
    assert members(timeline_of(same, REUSING), "c") == ["a", "c"]


def test_what_nobody_reads_takes_no_freed_buffer() -> None:
    found = timeline_of(
        """
    g (float[3,256] x, float[2,256] z) => (float[1,256] y)
    {
        [split] p, free, q = Split<axis = 0, num_outputs = 3>(x)
        [r] r = Neg(p)
        [again] s, unread = Split<axis = 0, num_outputs = 2>(z)
        [t] t = Neg(s)
        [y] y = Add(r, t)
    }""",
        REUSING,
    )
    assert members(found, "s") == ["p", "s"]
    # What nobody reads is free for the next tensor at once, but takes nothing over itself.
    assert members(found, "q") == ["q", "r"]
    assert members(found, "free") == ["free"]
    assert members(found, "unread") == ["unread", "t"]


# Rule 5: release.


def test_an_unread_output_is_held_to_the_end() -> None:
    found = timeline_of("""
    g (float[2,256] x) => (float[1,256] y)
    {
        [split] p, unread = Split<axis = 0, num_outputs = 2>(x)
        [b] b = Neg(p)
        [c] c = Neg(b)
        [y] y = Neg(c)
    }""")
    assert life(found, "unread") == (0, 4)
    assert life(found, "p") == (0, 2)
    assert kib(found) == [2, 3, 3, 3]


def test_a_buffer_is_released_after_the_step_of_its_last_reader() -> None:
    found = timeline_of("""
    g (float[256] x) => (float[256] y, float[256] z)
    {
        [a] a = Neg(x)
        [b] b = Exp(a)
        [y] y = Neg(a)
        [z] z = Neg(b)
    }""")
    assert life(found, "a") == (0, 3)
    assert life(found, "b") == (1, 4)
    assert kib(found) == [1, 2, 3, 3]


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
    assert body is not None
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


def test_nothing_is_taken_over_where_the_runtime_does_not_know_the_shape() -> None:
    """Behind a fence, memplan knows it, and the runtime only when it runs."""
    text = """
    g (float[256] x) => (float y) <int64[0] none = {{}}>
    {{
        [n] n = Size(x)
        [axes] axes = Mul(n, none)
        [v] v = {0}
        [a] a = Exp(v)
        [b] b = Relu(a)
        [c] c = Exp(b)
        [y] y = ReduceSum<keepdims = 0>(c)
    }}"""
    hidden, known = (text.format(op) for op in ("Unsqueeze(x, axes)", "Neg(x)"))
    assert members(timeline_of(known), "b") == ["a", "b"]
    assert members(timeline_of(hidden), "b") == ["b"]
    assert members(timeline_of(hidden, REUSING), "c") == ["c"]
