"""Chunks for the cache: which regions, how many chunks, and no byte more."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.graphs import TUNED, open_text
from helpers.plans import outputs_of
from helpers.proofs import proof
from memplan.equivalence.terms import IN_CHUNKS
from memplan.passes.chunk.asked import CACHE, parse_chunks
from memplan.passes.chunk.chunk_cache import ChunkCache
from memplan.passes.chunk.chunk_replay import ChunkReplay
from memplan.passes.manager import PassManager, PassStep
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import simulate

# An MLP and its gradients; u and its like are 8 MiB, what goes in and out 512 KiB.
MLP = """g (float[2048, 64] x, float[64, 1024] w, float[1024, 64] v, float[2048, 64] dy,
   float[1024, 2048] more)
  => (float[2048, 64] y, float[64, 1024] dw, float[1024, 64] dv, float[2048, 64] dx, float z)
{{ [o] o = Tanh(more) [p] p = Exp(o) [q] q = Mul(o, p) [z] z = ReduceSum <keepdims: int = 0>(q)
   [u] u = {0}(x, w) [t] t = Tanh(u) {1} [y] y = MatMul(h, v)
   [dv] dv = Gemm <transA: int = 1>(h, dy) [dh] dh = Gemm <transB: int = 1>(dy, v)
   [a] a = Mul(dh, t) [b] b = Mul(dh, u) [du] du = Add(a, b)
   [dw] dw = Gemm <transA: int = 1>(x, du) [dx] dx = Gemm <transB: int = 1>(du, w) }}"""
CHAIN = "[s] s = Sigmoid(t) [r] r = Mul(s, u) [h] h = Mul(r, t)"


def ran(text: str, *passes: object, session: object = TUNED) -> PassStep:
    model = open_text(text)
    return PassManager(passes).run(model, simulate(model.graph, session))[-1]  # type: ignore[arg-type]


def test_an_mlp_runs_in_pieces_of_the_cache() -> None:
    text = MLP.format("MatMul", CHAIN)
    step = ran(text, ChunkCache())
    assert step.note == "the region of 'u' in 4 chunks"
    before = open_text(text)
    start = simulate(before.graph, TUNED)
    constants = step.timeline.resident_bytes - start.resident_bytes
    assert step.timeline.peak_bytes <= start.peak_bytes + constants
    assert constants < 200
    kinds = [node.key for node in step.model.graph.nodes]
    assert kinds.count(":Slice") == 4 * 2  # x and dy alone are cut
    assert kinds.count(":Concat") == 2  # y and dx alone are joined
    assert ":Add" not in {
        k for k, n in zip(kinds, step.model.graph.nodes, strict=True) if "/sum" in n.name
    }  # dw and dv go on through Gemm's third input
    found = proof(before.prepared.proto, step.model.prepared.proto)
    assert (found.reason, found.rounding) == (None, (IN_CHUNKS,))
    again = ran(text, ChunkReplay(step.chunks, CACHE))
    assert again.model.prepared.proto == step.model.prepared.proto


def test_results_are_the_same_bits_and_bytes_as_predicted() -> None:
    text = MLP.format("MatMul", CHAIN)
    step, before = ran(text, ChunkCache()), open_text(text)
    random = np.random.default_rng(0)
    feeds = {
        each.name: random.standard_normal(each.shape).astype(np.float32)
        for each in (before.graph.tensors[t] for t in before.graph.inputs)
    }
    first, _ = outputs_of(before.prepared.proto, feeds)
    second, measured = outputs_of(step.model.prepared.proto, feeds)
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))
    bytes_at = [node.nbytes - measured.base_bytes for node in measured.nodes]
    assert bytes_at == step.timeline.dynamic.tolist()


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (MLP.format("MatMul", "[h] h = Mul(t, u)").replace("2048", "512"), "no chain"),
        (
            "g (float[2048, 1024] u, float[1024, 1024] w) => (float[2048, 1024] y)"
            "{ [a] a = MatMul(u, w) [b] b = Tanh(a) [c] c = Exp(b) [y] y = Mul(c, u) }",
            "no chain",
        ),
    ],
)
def test_what_fits_the_cache_or_is_mostly_copied_stays(text: str, note: str) -> None:
    step = ran(text, ChunkCache())
    assert not step.changed
    assert step.note.startswith(note)


@pytest.mark.parametrize("kind", [("tuned", "cuda"), ("default", "cpu")])
def test_elsewhere_nothing_was_measured(kind: tuple[str, str]) -> None:
    step = ran(MLP.format("MatMul", CHAIN), ChunkCache(), session=session_kind(*kind))
    assert not step.changed


def test_it_is_asked_for_by_name() -> None:
    asked = parse_chunks("cache")
    assert asked is not None
    assert (asked.kinds, asked.optional, asked.count) == ((CACHE,), False, 0)
