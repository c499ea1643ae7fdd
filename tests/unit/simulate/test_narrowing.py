"""What a narrower --wrt would free."""

from __future__ import annotations

from helpers.graphs import TUNED, open_text, timeline_of
from helpers.models import SAMPLES
from helpers.passes import TWO_WIDE, dotted
from memplan.api.analysis import analyze
from memplan.ir.phases import find_phases
from memplan.passes.manager import (
    run_passes,
)
from memplan.passes.prune import Prune
from memplan.simulate.narrowing import narrowings
from memplan.simulate.opened import open_model
from memplan.simulate.timeline import simulate

MODEL = SAMPLES / "mlp_adamw.onnx"


def test_what_each_module_holds() -> None:
    text = dotted("""
    g (float[64, 64] x, float[64, 64] a.w, float[64, 64] b.w, float[64, 64] c.w)
      => (float loss, float[64, 64] a.w.grad, float[64, 64] b.w.grad, float[64, 64] c.w.grad)
    <int64[2] shape = {64, 64}>
    {
      [fa] ha = MatMul(x, "a.w") [fb] hb = MatMul(ha, "b.w") [fc] hc = MatMul(hb, "c.w")
      [loss] loss = ReduceSum <keepdims: int = 0>(hc) [seed] g = Expand(loss, shape)
      [gc] "c.w.grad" = Gemm <transA: int = 1>(hb, g)
      [gb0] eb = Gemm <transB: int = 1>(g, "c.w")
      [gb] "b.w.grad" = Gemm <transA: int = 1>(ha, eb)
      [ga0] ea = Gemm <transB: int = 1>(eb, "b.w")
      [ga] "a.w.grad" = Gemm <transA: int = 1>(x, ea)
    }""")
    model = open_text(text)
    timeline = simulate(model.graph, TUNED)
    # There: ha for b's gradient, hb for c's, the gradient g that all need, and c's gradient.
    assert model.graph.nodes[timeline.peak_step].name == "gc"
    kib = 1024
    found = [
        (n.module, n.freed_bytes // kib, n.freed_with_earlier_bytes // kib, n.stashes)
        for n in narrowings(timeline, model.phases)
    ]
    assert found == [
        ("a_w", 0, 0, ()),
        ("b_w", 16, 16, (("ha", 16 * kib),)),
        ("c_w", 48, 64, (("hb", 16 * kib),)),
    ]


def test_groups_of_one_are_not_worth_a_table() -> None:
    timeline = timeline_of(TWO_WIDE)
    assert narrowings(timeline, find_phases(timeline.graph)) == ()


def test_what_is_freed_is_what_prune_frees() -> None:
    # The peak stays at the same node here, so that figures at this step are those of the peak.
    analysis = analyze(MODEL, state="apart")
    found = {item.module: item for item in narrowings(analysis.timeline, analysis.phases)}
    for module in ("layers.0", "layers.3"):
        rest = [*found][1 + [*found].index(module) :]
        model = open_model(MODEL)
        globs = tuple(p for m in rest for p in found[m].parameters)
        step = run_passes([Prune(globs)], model, analysis.timeline)[0]
        saved = analysis.timeline.peak_bytes - step.timeline.peak_bytes
        assert saved == found[module].freed_with_earlier_bytes
    assert analysis.as_json()["narrowing"][0]["stashes"] == [{"name": "linear", "nbytes": 16 << 20}]
