"""The last layers in chunks of the batch."""

import itertools

import numpy as np
import onnx
import pytest

import memplan
from helpers.chunking import by_pass, drawn, layered, products, runs, state_from
from helpers.graphs import parse
from helpers.proofs import proof
from memplan.deadline import Deadline
from memplan.passes.change import facts_of
from memplan.passes.chunk.asked import NO_TIME, Room
from memplan.passes.chunk.choose_chunks import Chunks
from memplan.passes.chunk.chunk_candidates import seeds
from memplan.passes.chunk.chunk_state import State, chunked
from memplan.passes.chunk.outline import Outline
from memplan.passes.chunk.part import LAYERS, Part
from memplan.passes.chunk.turn import turns


def turns_of(state: State, axis: int = 0) -> list[Part]:
    whole = Outline(state.model.graph, state.timeline).estimate(())
    assert whole is not None
    seed = seeds(state.model.graph, whole)[0]
    return list(turns(facts_of(state.model), state.model.phases.forward, seed, axis))


def test_regions_grow_from_the_loss_and_have_forward_and_backward_together() -> None:
    state = state_from(layered())
    found = turns_of(state)
    assert len(found) > 2
    for smaller, larger in itertools.pairwise(found):
        assert smaller.regions[0].uses.keys() < larger.regions[0].uses.keys()
    phases = state.model.phases.of
    for region in (part.regions[0] for part in found):
        assert set(region.block.values()) == {0}
        assert len({phases[node] for node in region.uses}) > 1


def test_what_counts_rows_is_computed_ahead() -> None:
    state = state_from(layered())
    names = {state.model.graph.nodes[n].name for n in turns_of(state)[-1].regions[0].uses}
    assert "sum" in names
    assert "count" not in names


def test_layers_lower_the_peak_at_no_more_flops() -> None:
    before, after, note = by_pass(Chunks(kind=LAYERS), layered())
    assert note.endswith("forward and backward, in 8 chunks")
    assert after.peak_bytes < 0.4 * before.peak_bytes
    assert after.floor_bytes <= before.floor_bytes
    assert products(after.model.graph) == products(before.model.graph)
    onnx.checker.check_model(after.model.prepared.proto, full_check=True)


def test_a_budget_takes_as_few_nodes_as_it_needs() -> None:
    before, lowest, _ = by_pass(Chunks(kind=LAYERS), layered())
    _, after, note = by_pass(
        Chunks(kind=LAYERS, budget_bytes=int(0.8 * before.peak_bytes)), layered()
    )
    assert after.peak_bytes <= 0.8 * before.peak_bytes
    assert len(after.model.graph.nodes) < len(lowest.model.graph.nodes)
    assert note.endswith("in 2 chunks")


def test_what_no_chunks_can_hold_gets_the_most() -> None:
    _, lowest, most = by_pass(Chunks(kind=LAYERS), layered())
    _, after, note = by_pass(Chunks(kind=LAYERS, budget_bytes=1), layered())
    assert (after.peak_bytes, note) == (lowest.peak_bytes, most)


def test_what_there_is_no_time_to_write_is_not_made() -> None:
    before, most, _ = by_pass(Chunks(kind=LAYERS), layered())
    nodes = len(most.model.graph.nodes)
    still = Deadline(1.0, lambda: 0.0)
    _, same, _ = by_pass(Chunks(kind=LAYERS, room=Room(still, 0.9 / nodes)), layered())
    assert len(same.model.graph.nodes) == nodes
    _, fewer, note = by_pass(Chunks(kind=LAYERS, room=Room(still, 1.5 / nodes)), layered())
    assert note.endswith("in 4 chunks")
    assert len(fewer.model.graph.nodes) < nodes / 1.5
    _, none, note = by_pass(Chunks(kind=LAYERS, room=Room(still, 1.0)), layered())
    assert note == NO_TIME
    assert len(none.model.graph.nodes) == len(before.model.graph.nodes)


@pytest.mark.parametrize("model", [layered(rows=2047), layered(rows=128)], ids=["odd", "few"])
def test_rows_that_do_not_divide_are_left_alone(model: onnx.ModelProto) -> None:
    before, after, note = by_pass(Chunks(kind=LAYERS), model)
    assert note == "no layers divide into chunks with enough rows"
    assert after.model is before.model


def test_what_needs_the_whole_batch_keeps_layers_together() -> None:
    """A mean over the batch: backward parts cannot begin before all forward parts are done."""
    model = parse(
        """g (float[2048, 8] x, float[8, 64] u, float[64, 8] v) => (float loss)
        <int64[1] rows = {0}> {
            [a] a = MatMul(x, u)  [m] m = ReduceMean(a, rows)  [c] c = Sub(a, m)
            [t] t = Tanh(c)  [b] b = MatMul(t, v)  [sq] sq = Mul(b, b)
            [loss] loss = ReduceSum <keepdims: int = 0>(sq)
        }"""
    )
    before = state_from(memplan.gradients(model, "loss", ["u", "v"]))
    feeds = drawn(before.model)
    expected = runs(before.model, feeds)
    for part in turns_of(before):
        after = chunked(before, [part.into(4)])
        assert proof(before.model.prepared.proto, after.model.prepared.proto).reason is None
        for name, value in runs(after.model, feeds).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-4, err_msg=name)
