"""Where a region ends, and in which blocks it runs."""

import numpy as np
import pytest

from helpers.chunking import (
    ATTENTION,
    drawn,
    head,
    in_chunks,
    member_names,
    region_of,
    runs,
    state_from,
)
from helpers.graphs import open_text
from memplan.ops.facets import SUM
from memplan.passes.change import facts_of
from memplan.passes.chunk.region import uses


def test_logits_and_loss_are_one_region_forward_and_backward() -> None:
    state = state_from(head())
    region = region_of(state, "logits", 0)
    assert region is not None
    assert member_names(state, region) == ("mm ls pick zeros scatter exp total back dl dh dt dw")
    assert set(region.block.values()) == {0}
    names = {state.model.graph.tensors[t].name: axis for t, axis in region.axis.items()}
    assert names["dw"] == SUM
    assert names["dt"] == 1
    assert region.divisor(state.model.graph) == 8


def test_small_tensors_end_a_region() -> None:
    state = state_from(head())
    whole = region_of(state, "logits", 0, smallest=0)
    assert whole is not None
    # Followed everywhere, the region takes in what stands before the logits as well.
    assert {"h", "hh", "dx"} <= set(member_names(state, whole).split())


def test_forward_and_backward_apart_are_two_blocks_that_hand_on_pieces() -> None:
    state = state_from(ATTENTION)
    region = region_of(state, "s", 0)
    assert region is not None
    blocks: dict[int, str] = {}
    for node, block in region.block.items():
        name = state.model.graph.nodes[node].name
        blocks[block] = f"{blocks.get(block, '')} {name}".strip()
    # ``pt`` could run at once, but nobody reads it before ``dv``.
    assert blocks == {0: "qk p y", 1: "pt dv dp m t pm ds dq"}
    after = in_chunks(state, "s", 0, 2)
    joined = [node.name for node in after.model.graph.nodes if node.op == "Concat"]
    assert not [name for name in joined if name.startswith("p/")]


# A graph, a node's tensor to begin with, and what is chunked with it, all in one block.
REGIONS: dict[str, tuple[str, str, str]] = {
    # A softmax in parts: the sums are small, and lead from the region back into it.
    "what lies between is little": (
        """g (float[8, 4] x, float[4, 64] w) => (float[8, 4] y) <int64[1] last = {1}> {
            [mm] s = MatMul(x, w) [max] m = ReduceMax(s, last) [sub] d = Sub(s, m) [exp] e = Exp(d)
            [sum] t = ReduceSum(e, last) [div] p = Div(e, t) [wt] wt = Transpose(w)
            [out] y = MatMul(p, wt) }""",
        "e",
        "mm max sub exp sum div out",
    ),
    # It is no sum: it is outside, and what it reads is joined.
    "a maximum over the chunked axis": (
        """g (float[8, 4] x, float[4, 64] w) => (float[1, 64] y) <int64[1] first = {0}> {
            [mm] a = MatMul(x, w) [wide] wide = Exp(a) [max] y = ReduceMax(wide, first) }""",
        "wide",
        "mm wide",
    ),
    "a mean over the chunked axis": (
        """g (float[8, 4] x, float[4, 64] w) => (float[1, 64] y) <int64[1] first = {0}> {
            [mm] a = MatMul(x, w) [wide] wide = Tanh(a) [mean] y = ReduceMean(wide, first) }""",
        "wide",
        "mm wide",
    ),
    # Rows of a with all of its columns: each product needs every chunk.
    "what reads the whole of what is chunked": (
        """g (float[8, 8] x) => (float[8, 8] y) {
            [exp] a = Exp(x) [mm] b = MatMul(x, a) [out] y = Tanh(b) }""",
        "b",
        "mm out",
    ),
}


@pytest.mark.parametrize(("text", "begin", "members"), REGIONS.values(), ids=REGIONS)
def test_where_a_region_ends(text: str, begin: str, members: str) -> None:
    state = state_from(text)
    region = region_of(state, begin, 0)
    assert region is not None
    assert member_names(state, region) == members
    assert set(region.block.values()) == {0}


def test_a_sum_that_is_added_to_something_later() -> None:
    """As ONNX Runtime fuses the gradients of a tied embedding: the addend waits for the end."""
    state = state_from(
        """g (float[8, 4] x, float[4, 64] w, float[64, 4] e) => (float[64, 4] dw) {
            [xt] xt = Transpose(x)
            [mm] s = MatMul(x, w)
            [exp] p = Exp(s)
            [wt] wt = Transpose(w)
            [dx] dx = MatMul(p, wt)
            [sq] dx0 = MatMul(xt, dx)
            [far] far = MatMul(e, dx0)
            [dw] dw = Gemm <transA: int = 1>(p, x, far)
        }"""
    )
    region = region_of(state, "p", 0)
    assert region is not None
    names = {state.model.graph.nodes[n].name for n in region.late}
    assert names == {"dw"}
    assert set(region.block.values()) == {0}
    after = in_chunks(state, "p", 0, 4)
    last = after.model.graph.nodes[-1]
    assert (last.op, last.name) == ("Add", "dw/add")
    feeds = drawn(state.model)
    np.testing.assert_allclose(
        runs(after.model, feeds)["dw"], runs(state.model, feeds)["dw"], rtol=1e-4, atol=1e-5
    )


def test_a_sum_of_products_of_stacks_is_added_up() -> None:
    """Gemm, which adds to a sum as it goes, takes matrices alone."""
    state = state_from(
        """g (float[2, 8, 4] x, float[2, 4, 64] w) => (float[2, 4, 64] dw) {
            [mm] s = MatMul(x, w)  [tanh] p = Tanh(s)
            [xt] xt = Transpose <perm: ints = [0, 2, 1]>(x)  [dw] dw = MatMul(xt, p) }"""
    )
    after = in_chunks(state, "p", 1, 4)
    made = [node.op for node in after.model.graph.nodes if node.name.startswith("dw/")]
    assert sorted(made) == [*["Add"] * 3, *["MatMul"] * 4]
    feeds = drawn(state.model)
    np.testing.assert_allclose(
        runs(after.model, feeds)["dw"], runs(state.model, feeds)["dw"], rtol=1e-4, atol=1e-5
    )


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
