"""What parts in chunks come to, before they are written."""

from dataclasses import replace

import numpy as np
import onnx
import pytest

from helpers.chunking import ATTENTION, drawn, head, layered, runs, state_from
from helpers.graphs import tensor
from helpers.proofs import proof
from memplan.passes.change import facts_of
from memplan.passes.chunk.chunk_candidates import Regions
from memplan.passes.chunk.chunk_state import State, chunked
from memplan.passes.chunk.chunk_writer import Chunked
from memplan.passes.chunk.outline import Outline
from memplan.passes.chunk.part import Part
from memplan.passes.chunk.region import Growth

WIDE = head(rows=2048, width=8, classes=512)
GRAPHS = {"head": WIDE, "attention": ATTENTION, "layers": layered()}


@pytest.mark.parametrize("text", GRAPHS.values(), ids=GRAPHS)
def test_a_graph_as_it_is_takes_what_it_takes(text: str | onnx.ModelProto) -> None:
    state = state_from(text)
    found = Outline(state.model.graph, state.timeline).estimate(())
    assert found is not None
    assert found.peak_bytes == state.peak_bytes
    assert found.floor_bytes >= state.floor_bytes  # no bound: outputs are held as they are made


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("text", [WIDE, layered()], ids=["head", "layers"])
def test_an_estimate_is_near_what_is_written(text: str | onnx.ModelProto, count: int) -> None:
    state = state_from(text)
    outline = Outline(state.model.graph, state.timeline)
    whole = outline.estimate(())
    assert whole is not None
    near = 0
    for candidate in Regions(facts_of(state.model)).around(whole, ()):
        if count not in candidate.counts(state.model.graph):
            continue
        parts = [candidate.into(count)]
        found, written = outline.estimate(parts), chunked(state, parts)
        assert found is not None
        better = written.peak_bytes < 0.9 * state.peak_bytes
        near += better
        assert found.peak_bytes == pytest.approx(written.peak_bytes, rel=0.05 if better else 0.2)
        assert found.floor_bytes == pytest.approx(written.floor_bytes, rel=0.1)
    assert near


TWO = """
g (float[1024, 8] x, float[8, 256] w, float[256, 8] v) => (float[1024, 8] y, float[8, 8] z) {
    [a] a = MatMul(x, w)  [b] b = Tanh(a)  [c] c = MatMul(b, v)
    [d] d = MatMul(c, w)  [e] e = Exp(d)   [y] y = MatMul(e, v)
    [t] t = Transpose <perm: ints = [1, 0]>(c)  [z] z = MatMul(t, y)
}
"""
"""Rows go from one end to the other."""


def parts_of(state: State, *parts: tuple[str, int]) -> list[Part]:
    """The nodes of these names along the rows, in so many chunks."""
    growth = Growth(facts_of(state.model), 0)
    assert growth.start(tensor(state.model.graph, "b").id, 0, 100)
    ids = {node.name: node.id for node in state.model.graph.nodes}
    found = []
    for names, count in parts:
        region = growth.among([ids[name] for name in names]).region()
        assert region is not None
        found.append(Part((region,), count))
    return found


@pytest.mark.parametrize("counts", [(2, 2), (4, 2), (2, 8)])
def test_parts_in_chunks_of_their_own_read_each_other(counts: tuple[int, int]) -> None:
    """In pieces where these are the same, else joined and sliced anew."""
    state = state_from(TWO)
    parts = parts_of(state, ("abc", counts[0]), ("dey", counts[1]))
    after = chunked(state, parts)
    names = {node.name for node in after.model.graph.nodes}
    assert "c/join" in names  # the product at the end reads all of it
    assert ("c/slice0" in names) == (counts[0] != counts[1])
    estimate = Outline(state.model.graph, state.timeline).estimate(parts)
    assert estimate is not None
    assert estimate.peak_bytes == pytest.approx(after.peak_bytes, rel=0.1)
    assert proof(state.model.prepared.proto, after.model.prepared.proto).reason is None
    feeds = drawn(state.model)
    expected = runs(state.model, feeds)
    for name, value in runs(after.model, feeds).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-3, err_msg=name)


def test_blocks_that_wait_for_each_other_have_no_order() -> None:
    """What lies between two parts of a block may not be in a block of another part's."""
    state = state_from(TWO)
    one = parts_of(state, ("abcdey", 2))[0].regions[0]
    nodes = {node.name: node.id for node in state.model.graph.nodes}
    apart = [
        Part((replace(one, uses=uses, block=dict.fromkeys(uses, 0)),), 2)
        for names in ("ace", "bdy")
        if (uses := {nodes[name]: one.uses[nodes[name]] for name in names})
    ]
    assert Chunked(state.model.graph, apart).order() == []
    assert Outline(state.model.graph, state.timeline).estimate(apart) is None
