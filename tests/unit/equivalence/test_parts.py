"""The proof of chunks: what it follows, and the wrong chunks that it does not."""

import onnx
import pytest

from helpers.chunking import ATTENTION, head, in_chunks, state_from
from helpers.graphs import parse
from helpers.proofs import proof
from memplan.proto.edit import copied

# Two halves of h, cut along its first axis, and constants for that.
HALVES = "[s0] h0 = Slice(h, zero, two, zero) [s1] h1 = Slice(h, two, four, zero)"


def cut(head: str, nodes: str) -> str:
    """A graph of such nodes."""
    return f"""g {head} <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}},
    int64[1] three = {{3}}, int64[1] four = {{4}}> {{ {nodes} }}"""


WHOLE = (
    "g (float[4, 3] x, float[3, 2] w) => (float[4, 2] y) { [a] h = Exp(x) [n] y = MatMul(h, w) }"
)
CHUNKS = cut(
    "(float[4, 3] x, float[3, 2] w) => (float[4, 2] y)",
    f"[a] h = Exp(x) {HALVES} [n0] y0 = MatMul(h0, w) [n1] y1 = MatMul(h1, w) "
    "[j] y = Concat <axis: int = 0>(y0, y1)",
)

SUM = """g (float[4, 3] x, float[4, 2] w, float[3, 2] c) => (float[3, 2] y)
{ [a] h = Exp(x) [n] y = Gemm <transA: int = 1>(h, w, c) }"""
_ROWS = f"[a] h = Exp(x) {HALVES} " + HALVES.replace("h", "w").replace("[s", "[t")
SUMMED = cut(
    "(float[4, 3] x, float[4, 2] w, float[3, 2] c) => (float[3, 2] y)",
    f"""{_ROWS} [n0] y0 = Gemm <transA: int = 1>(h0, w0, c)
    [n1] y = Gemm <transA: int = 1>(h1, w1, y0)""",
)
LATE = cut(
    "(float[4, 3] x, float[4, 2] w, float[3, 2] c) => (float[3, 2] y)",
    f"""{_ROWS} [n0] y0 = Gemm <transA: int = 1>(h0, w0)
    [n1] y1 = Gemm <transA: int = 1>(h1, w1, y0) [late] y = Add(y1, c)""",
)


def test_rows_that_are_joined_are_the_whole_up_to_rounding() -> None:
    found = proof(WHOLE, CHUNKS)
    assert found.reason is None
    assert found.rounded == ("y",)
    assert not found.proved
    assert found.as_json()["assumed_up_to_rounding"] == ["y"]


@pytest.mark.parametrize("text", [SUMMED, LATE], ids=["from the addend on", "added behind"])
def test_summands_that_are_added_are_the_whole(text: str) -> None:
    found = proof(SUM, text)
    assert found.reason is None
    assert found.rounded == ("y",)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Slice(h, two, four, zero)", "Slice(h, one, four, zero)"),  # overlap, or another shape
        ("Slice(h, two, four, zero)", "Slice(h, zero, two, zero)"),  # the first rows twice
        ("Concat <axis: int = 0>(y0, y1)", "Concat <axis: int = 0>(y1, y0)"),
        ("Concat <axis: int = 0>(y0, y1)", "Concat <axis: int = 1>(y0, y1)"),
        ("Concat <axis: int = 0>(y0, y1)", "Identity(y0)"),  # half of it
        ("[n1] y1 = MatMul(h1, w)", "[n1] y1 = MatMul(h1, w1) [w1] w1 = Neg(w)"),
        ("Slice(h, zero, two, zero)", "Slice(x, zero, two, zero)"),  # before the Exp
        ("Slice(h, zero, two, zero)", "Slice(h, zero, two, one)"),  # columns
    ],
)
def test_wrong_rows_are_refused(old: str, new: str) -> None:
    assert old in CHUNKS
    text = CHUNKS.replace(old, new).replace(
        "[n1] y1 = MatMul(h1, w1) [w1] w1 = Neg(w)", "[w1] w1 = Neg(w) [n1] y1 = MatMul(h1, w1)"
    )
    assert proof(WHOLE, text).reason is not None


def test_rows_without_the_last_ones_are_not_the_whole() -> None:
    """A reduction takes any number of rows, so that no shape tells."""
    largest = "[m] z = ReduceMax <keepdims: int = 0>(y)"
    whole = WHOLE.replace("(float[4, 2] y)", "(float z)").replace(
        "(h, w) }", f"(h, w) {largest} }}"
    )
    chunks = CHUNKS.replace("(float[4, 2] y)", "(float z)").replace(
        "(y0, y1)", f"(y0, y1) {largest}"
    )
    assert proof(whole, chunks).rounded == ("y",)
    short = chunks.replace("Slice(h, two, four, zero)", "Slice(h, two, three, zero)")
    assert proof(whole, short).reason is not None


def test_a_bias_with_rows_of_its_own_is_cut_like_the_rows() -> None:
    head = "(float[4, 3] x, float[3, 2] w, float[4, 2] c) => (float[4, 2] y)"
    whole = f"g {head} {{ [a] h = Exp(x) [n] y = Gemm(h, w, c) }}"
    chunks = cut(
        head,
        f"""[a] h = Exp(x) {HALVES}
        [c0] b0 = Slice(c, zero, two, zero) [c1] b1 = Slice(c, two, four, zero)
        [n0] y0 = Gemm(h0, w, b0) [n1] y1 = Gemm(h1, w, b1)
        [j] y = Concat <axis: int = 0>(y0, y1)""",
    )
    assert proof(whole, chunks).rounded == ("y",)
    assert proof(whole, chunks.replace("w, b1", "w, b0")).reason is not None


@pytest.mark.parametrize("text", [SUMMED, LATE], ids=["from the addend on", "added behind"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Slice(h, two, four, zero)", "Slice(h, zero, two, zero)"),  # other rows than of w
        ("Slice(w, two, four, zero)", "Slice(x, two, four, zero)"),
        ("(h1, w1, y0)", "(h1, w1, y0) [z] z = Neg(y0)"),  # what nothing reads may not stay
        ("(h1, w1, y0)", "(h1, w1, c)"),  # the first summand is lost
        ("(h1, w1, y0)", "(h0, w0, y0)"),  # the first one twice
        ("<transA: int = 1>(h1, w1, y0)", "<transA: int = 1, beta: float = 2.0>(h1, w1, y0)"),
        ("<transA: int = 1>(h1, w1, y0)", "<transA: int = 1, alpha: float = 2.0>(h1, w1, y0)"),
    ],
)
def test_wrong_sums_are_refused(text: str, old: str, new: str) -> None:
    assert proof(SUM, text.replace(old, new)).reason is not None or old not in text


def test_what_is_added_is_added_once() -> None:
    twice = SUMMED.replace("[n1] y =", "[n1] y1 =").replace(
        "(h1, w1, y0)", "(h1, w1, y0) [late] y = Add(y1, c)"
    )
    assert proof(SUM, twice).reason is not None
    apart = SUMMED.replace("[n1] y =", "[n1] y1 =").replace(
        "(h1, w1, y0)", "(h1, w1, c) [late] y = Add(y0, y1)"
    )
    assert proof(SUM, apart).reason is not None


def reduced(op: str, halves: str = HALVES) -> tuple[str, str]:
    """All of x reduced by an operator; and its halves, which are added."""
    node = op + " <keepdims: int = 0>"
    head = "(float[4, 4] x) => (float y)"
    return f"g {head} {{ [a] h = Exp(x) [n] y = {node}(h) }}", cut(
        head,
        f"[a] h = Exp(x) {halves} [n0] y0 = {node}(h0) [n1] y1 = {node}(h1) [s] y = Add(y0, y1)",
    )


def test_sums_along_different_axes_do_not_add_up() -> None:
    assert proof(*reduced("ReduceSum")).reason is None
    across = HALVES.replace("two, four, zero", "two, four, one")
    assert proof(*reduced("ReduceSum", across)).reason is not None


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMean"])
def test_other_reductions_are_not_sums(op: str) -> None:
    assert proof(*reduced(op)).reason is not None


@pytest.mark.parametrize(
    ("view", "shape"),
    [
        ("Reshape(h, six)", "6"),
        ("Unsqueeze(h, zero)", "1, 2, 3"),
        ("Transpose <perm = [1, 0]>(h)", "3, 2"),
        ("Cast <to = 1>(h)", "2, 3"),
    ],
)
def test_a_view_of_a_slice_that_the_original_has_is_none_of_a_chunk(view: str, shape: str) -> None:
    """As in gradients of recurrent layers, where weights are slices and views of them; what is
    known by a rule in the original is known by it here, too."""
    text = f"""g (float[4, 3] x) => (float[{shape}] y)
    <int64[1] zero = {{0}}, int64[1] two = {{2}}, int64[1] six = {{6}}>
    {{ [s] h = Slice(x, zero, two, zero) [v] v = {view} [n] y = Exp(v) }}"""
    found = proof(text, text)
    assert found.proved
    assert found.kept == 3


@pytest.mark.parametrize(("text", "seed"), [(head(), "logits"), (ATTENTION, "s")])
def test_every_node_of_chunks_counts(text: str, seed: str) -> None:
    """Whatever one node of a chunked graph reads instead of what it should, the proof sees it."""
    before = state_from(text)
    after = in_chunks(before, seed, 0, 2)
    reference = before.model.prepared.proto
    graph = after.model.prepared.proto.graph
    assert proof(reference, after.model.prepared.proto).reason is None
    tried = 0
    for place, node in enumerate(graph.node):
        for slot, name in enumerate(node.input):
            other = _other_chunk(name, {output for n in graph.node[:place] for output in n.output})
            if other is None:
                continue
            wrong = copied(after.model.prepared.proto)
            wrong.graph.node[place].input[slot] = other
            assert proof(reference, wrong).reason is not None, (node.name, name, other)
            tried += 1
    assert tried > 15


def _other_chunk(name: str, made: set[str]) -> str | None:
    """The same tensor of the chunk before, if there is one; constants are equal in all chunks."""
    equal = name.startswith(("zeros/", "g/"))
    other = "" if equal else name.replace("/chunk1", "/chunk0")
    return other if other in made and other != name else None


def test_bounds_of_slices_count() -> None:
    before = state_from(head())
    after = in_chunks(before, "logits", 0, 2)
    model = copied(after.model.prepared.proto)
    for tensor in model.graph.initializer:
        if tensor.name == "chunk/4":
            tensor.CopyFrom(onnx.helper.make_tensor(tensor.name, tensor.data_type, [1], [3]))
    assert proof(before.model.prepared.proto, model).reason is not None


def test_repeated_values_are_known_by_value_and_shape() -> None:
    one = "g (float[2] x) => (float[3, 2] y) <int64[2] s = {3, 2}> { [n] y = Expand(x, s) }"
    other = "g (float[2] x) => (float[3, 2] y) <int64[2] s = {3, 1}> { [n] y = Expand(x, s) }"
    assert proof(one, other).proved
    assert proof(
        one, one.replace("Expand(x", "Expand(u").replace("[n]", "[u] u = Neg(x) [n]")
    ).reason
    zeros = (
        "g () => (float[2, 2] y) <int64[2] s = {2, 2}> "
        "{ [n] y = ConstantOfShape <value: tensor = float[1] {0}>(s) }"
    )
    assert parse(zeros)
    assert proof(zeros, zeros).proved
    assert proof(zeros, zeros.replace("{0}", "{1}")).reason is not None


def test_a_view_of_a_part_of_one_is_a_part_of_the_view_that_the_reference_has() -> None:
    """Chunks of one leave two axes that may be the chunked one: [4, 1, 1, 3]."""
    head = "(float[4, 2, 3] x) => (float[4, 1, 2, 3] y)"
    whole = f"g {head} <int64[1] one = {{1}}> {{ [n] h = Neg(x) [u] y = Unsqueeze(h, one) }}"
    chunks = cut(
        head,
        """[s0] x0 = Slice(x, zero, one, one) [n0] h0 = Neg(x0) [u0] y0 = Unsqueeze(h0, one)
        [s1] x1 = Slice(x, one, two, one) [n1] h1 = Neg(x1) [u1] y1 = Unsqueeze(h1, one)
        [j] y = Concat <axis: int = 2>(y0, y1)""",
    )
    assert proof(whole, chunks).reason is None
