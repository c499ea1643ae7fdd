"""What the pass chooses, and what it writes."""

import onnx
import pytest

import memplan
from helpers.chunking import by_pass, head, in_chunks, products, state_from
from helpers.graphs import REUSING, TUNED, parse
from helpers.problems import Clock
from helpers.proofs import proof
from memplan.deadline import Deadline
from memplan.errors import UsageError
from memplan.passes.chunk.asked import NO_TIME, Asked, Room, parse_chunks
from memplan.passes.chunk.choose_chunks import Chunks
from memplan.passes.chunk.chunk_state import state_of
from memplan.passes.chunk.part import LAYERS, REGIONS
from memplan.simulate.timeline import simulate

BIG = head(rows=2048, width=8, classes=512)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("auto", Asked((LAYERS, REGIONS), optional=True)),
        ("regions", Asked((REGIONS,))),
        ("layers", Asked((LAYERS,))),
        ("none", None),
        ("", None),
        ("16", Asked((REGIONS, LAYERS), count=16)),
    ],
)
def test_parse(text: str, asked: Asked | None) -> None:
    assert parse_chunks(text) == asked


@pytest.mark.parametrize("text", ["1", "0", "-2", "many", "2.0"])
def test_parse_refuses(text: str) -> None:
    with pytest.raises(UsageError, match="expected a number of chunks"):
        parse_chunks(text)


def test_logits_in_chunks_lower_peak_and_floor_at_no_more_flops() -> None:
    before, after, note = by_pass(Chunks(), BIG)
    assert note == "the region of 'logits' in 8 chunks"
    assert after.peak_bytes < 0.4 * before.peak_bytes
    assert after.floor_bytes < 0.3 * before.floor_bytes
    assert products(after.model.graph) == products(before.model.graph)
    onnx.checker.check_model(after.model.prepared.proto, full_check=True)


def test_regions_are_the_best_of_those_there_was_time_for() -> None:
    """More time never gives a higher peak; with none there are no chunks."""
    peaks = []
    for looks in range(1, 12):
        room = Room(Deadline(looks, Clock(1.0)), 0.0)
        before, after, note = by_pass(Chunks(room=room), BIG)
        assert (note == NO_TIME) == (after.model is before.model)
        peaks.append(after.peak_bytes)
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[0] == before.peak_bytes
    assert peaks[-1] == by_pass(Chunks(), BIG)[1].peak_bytes
    assert len(set(peaks)) > 2


def test_chunks_run_one_after_the_other_and_products_go_on_from_the_sum_so_far() -> None:
    nodes = in_chunks(state_from(head()), "logits", 0, 4).model.graph.nodes
    places = [int(node.name.split("/chunk")[1]) for node in nodes if "/chunk" in node.name]
    assert places == sorted(places)
    assert set(places) == {0, 1, 2, 3}
    sums = [node.op for node in nodes if node.name.startswith("dw/chunk")]
    assert sums == ["MatMul", "Gemm", "Gemm", "Gemm"]


PEAK = state_from(BIG).peak_bytes


@pytest.mark.parametrize(
    ("chunks", "why"),
    [
        (Chunks(count=3), "no region saves anything"),  # 3 does not divide the rows
        (Chunks(budget_bytes=PEAK), "not needed: within the budget"),
    ],
)
def test_what_needs_or_allows_no_chunks_stays_whole(chunks: Chunks, why: str) -> None:
    before, after, note = by_pass(chunks, BIG)
    assert note == why
    assert after.model is before.model


def test_a_budget_ends_the_search() -> None:
    assert by_pass(Chunks(budget_bytes=PEAK // 2), BIG)[1].peak_bytes <= PEAK // 2


def test_other_sessions_and_opsets_are_left_alone() -> None:
    state = state_from(BIG)
    plain = simulate(state.model.graph, REUSING)
    assert Chunks().apply(state.model, plain).model is state.model
    old = state_from(
        '<ir_version: 8, opset_import: ["" : 12]> g (float[8, 4] x) => (float[8, 4] y) '
        "{ [n] y = Exp(x) }"
    )
    assert "opset" in Chunks().apply(old.model, old.timeline).note


SEQUENCES = """
g (float[B, 1024, 8] x, float[8, 512] w, int64[B, 1024] labels) => (float loss)
<int64[2] rows = {-1, 512}, int64[1] flat = {-1}> {
    [mm] logits = MatMul(x, w)  [r] merged = Reshape(logits, rows)  [l] at = Reshape(labels, flat)
    [loss] loss = SoftmaxCrossEntropyLoss(merged, at)
}
"""
"""Logits of sequences, whose rows the loss takes one after the other."""


@pytest.mark.parametrize(("given", "batch"), [("B", 4), ("4", 4), ("B", 3)])
def test_logits_of_sequences_go_in_chunks_of_the_batch_through_the_view(
    given: str, batch: int
) -> None:
    model = memplan.gradients(parse(SEQUENCES.replace("B,", f"{given},")), "loss", ["x", "w"])
    before = state_from(model, dims={"B": batch} if given == "B" else None)
    if batch == 3:  # it does not divide
        assert Chunks(count=2).apply(before.model, before.timeline).model is before.model
        return
    found = Chunks().apply(before.model, before.timeline)
    assert found.note == "the region of 'logits' in 4 chunks"
    after = state_of(found.model, simulate(found.model.graph, TUNED))
    assert after.peak_bytes < 0.5 * before.peak_bytes
    assert products(after.model.graph) == products(before.model.graph)
    assert proof(before.model.prepared.bound, after.model.prepared.proto).reason is None
