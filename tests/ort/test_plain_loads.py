"""Plain sessions: what loading twice leaves, and what later runs hold beside a Loop."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime import InferenceSession
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from helpers.graphs import parse
from helpers.reports import text_of
from memplan.api.rewrite.goal import RewriteOptions
from memplan.api.rewrite.rewriting import rewrite
from memplan.deadline import Deadline
from memplan.errors import ModelRefusedError
from memplan.planning.plain import plain_plan
from memplan.planning.plain.as_loaded import as_loaded
from memplan.planning.plain.finish_fences import Draft, Peaks, PlainModel, finished_with
from memplan.report.tell.rewrite import tell_rewrite
from memplan.runtime.inputs import synthesize
from memplan.runtime.measure import measure
from memplan.runtime.messages import RunRequest
from memplan.shapes.prepare import load
from memplan.simulate.opened import opened
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import later_runs, simulate
from memplan.units import parse_budget, parse_size

PLAIN = session_kind("default")
# The runtime writes a product with a bias as Gemm, behind a Reshape that the file has, too.
TWICE = """g (float[4, 8, 16] x, float[16, 16] w, float[16] b) => (float[16, 16] g, float[32] y)
 <int64[2] rows = {32, 16}, int64[1] last = {-1}>
 { h = Tanh(x) m = MatMul(h, w) a = Add(m, b) e = Exp(a) f = Reshape(e, rows)
   r = Reshape(h, rows) t = Transpose <perm: ints = [1, 0]>(r) g = MatMul(t, f)
   y = ReduceSum <keepdims: int = 0>(f, last) }"""
# Both nodes keep their names: the transposition is done behind the product, where nothing needs it.
TURNED = """g (float[8,16] x, float[16,8] v) => (float[8] y, float[16,8] z) <int64[1] first = {0}>
 { [t] t = Transpose<perm = [1, 0]>(x) [m] m = Mul(t, t) [y] y = ReduceSum<keepdims = 0>(m, first)
   [z] z = Mul(t, v) }"""
# Range is computed at load, and its result was not in the file.
FOLDED = """g (float[40, 16] x) => (float[40, 16] y) <int64 a = {0}, int64 b = {40}, int64 c = {1}>
 { [e] e = Exp(x) [r] r = Range(a, b, c) [k] k = Gather<axis = 0>(e, r) [s] s = Sin(k)
   [p] p = Mul(s, k) [y] y = Add(p, e) }"""
# The runtime fuses all from h to m, whoever else reads h.
GELU = """g (float[64, 64] x) => (float[64, 64] y) <float half = {0.5}, float three = {3},
   float cubed = {0.044715}, float root = {0.7978845608}, float one = {1}>
 { [a] a = Sin(x) [h] h = Mul(a, half) [p] p = Pow(a, three) [c] c = Mul(p, cubed)
   [s] s = Add(a, c) [r] r = Mul(s, root) [t] t = Tanh(r) [o] o = Add(t, one) [m] m = Mul(h, o)
   [y] y = Cos(m) }"""
IN_STEPS = """g (float[5,8,16] x, float[16,8] v) => (float[5,8] y, float[5,16,8] z)
 <int64[1] first = {0}> { y, z = Scan<num_scan_inputs = 1, body = b (float[8,16] e)
   => (float[8] s, float[16,8] o) { [t] t = Transpose<perm = [1, 0]>(e) [m] m = Mul(t, t)
     [s] s = ReduceSum<keepdims = 0>(m, first) [o] o = Mul(t, v) }>(x) }"""
LOOP = """g (float[64, 64] x) => (float[64, 64] y) <int64 m = {5}, bool c = {1}>
 { e = Exp(x) a = Loop (m, c, e) <body = b (int64 i, bool cc, float[64, 64] s)
   => (bool co, float[64, 64] so) { co = Identity(cc) t = Sin(s) so = MatMul(t, x) }>
   y = Add(a, e) }"""
# What makes the weight is folded in the original alone: there it is a constant, which is packed.
STORED = """g (float[8,6] x) => (float[8,6] y) <float[36] w = {%s}, int64[2] square = {6, 6}>
 { [t] v = Reshape(w, square) [m] m = MatMul(x, v) [s] s = Sin(m) [y] y = Mul(s, m) }"""
STORED %= ", ".join(["0.5"] * 36)
IN_BODY = STORED.replace(
    "[m] m = MatMul(x, v)",
    """[m] m = Scan<num_scan_inputs = 1, body = b
 (float[6] e) => (float[6] o) { [o] o = MatMul(e, v) }>(x)""",
)
# Only in the body are nodes fused.
SCAN = """g (float[5, 8, 8] x, float[8, 8] v, float[8, 8] h) => (float[8, 8] y, float[5, 8, 8] z)
 { s = Exp(h) y, z = Scan<num_scan_inputs = 1, body = b (float[8, 8] h0, float[8, 8] e)
   => (float[8, 8] h1, float[8, 8] o) { [sum] a = Add(h0, e) [gemm] g = Gemm(a, v)
     [tanh] h1 = Tanh(g) [out] o = Exp(h1) }>(s, x) }"""


def test_a_plan_for_plain_sessions_has_no_node_that_they_merge(tmp_path: Path) -> None:
    path = tmp_path / "new.onnx"
    options = RewriteOptions(parse_size("100%"), session="default", effort=1)
    onnx.save(rewrite(parse(TWICE), options).model, path)
    held = as_loaded(opened(load(path, {})), PLAIN)
    assert held.unchanged, held.gone


@pytest.mark.parametrize("text", [LOOP, SCAN, IN_STEPS], ids=["loop", "scan", "turned"])
@pytest.mark.parametrize("threads", [1, 2])
def test_runs_of_a_loop_are_predicted(tmp_path: Path, text: str, threads: int) -> None:
    path, inputs = tmp_path / "loop.onnx", tmp_path / "in.npz"
    onnx.save(parse(text), path)
    model = opened(load(path, {}))
    np.savez(inputs, **synthesize(model.graph))
    held = as_loaded(model, PLAIN)
    assert held.unchanged == (text is LOOP)
    timeline = simulate(held.model.graph, held.kind)
    request = RunRequest("default", "cpu", runs=0, threads=threads)
    found = measure(path, request, inputs, tmp_path / "out.npz", [], 120.0, None)
    assert timeline.dynamic_peak_bytes == found.dynamic_bytes
    assert later_runs(timeline).dynamic_peak_bytes == found.second_run_dynamic_bytes


@pytest.mark.parametrize("text", [TURNED, FOLDED])
@pytest.mark.parametrize("budget", ["1MB", pytest.param("min", marks=pytest.mark.nightly)])
def test_what_the_runtime_makes_of_the_new_file_is_what_is_reported(
    tmp_path: Path, text: str, budget: str
) -> None:
    """Also where it keeps every name and changes what nodes read, or folds a node away."""
    path, inputs = tmp_path / "new.onnx", tmp_path / "in.npz"
    options = RewriteOptions(parse_budget(budget), session="default", optimize="none", effort=1)
    found = rewrite(parse(text), options)
    onnx.save(found.model, path)
    np.savez(inputs, **synthesize(opened(load(path, {})).graph))
    request = RunRequest("default", "cpu", runs=0)
    run = measure(path, request, inputs, tmp_path / "out.npz", [], 120.0, None)
    assert found.timeline.dynamic_peak_bytes == run.dynamic_bytes
    assert found.timeline.peak_with_workspace_bytes <= found.budget_bytes


def test_nodes_that_read_other_tensors_are_not_those_of_the_file(tmp_path: Path) -> None:
    onnx.save(parse(TURNED), tmp_path / "turned.onnx")
    held = as_loaded(opened(load(tmp_path / "turned.onnx", {})), PLAIN)
    assert (held.gone, held.new) == ((), ())
    assert {"m", "t"} <= {*held.rewired}
    assert not held.unchanged


def test_a_file_that_the_runtime_refuses_is_never_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pin on what a fusion takes away makes the file invalid, until more pins prevent that."""
    options = RewriteOptions(parse_budget("1MB"), session="default", optimize="none", effort=1)
    few: list[PlainModel] = []

    def finish(draft: Draft, _: Peaks, needed: frozenset[str], _until: Deadline) -> PlainModel:
        few.append(finished_with(draft, (), [draft.pinnable[name] for name in {"h", *needed}]))
        return few[-1]

    monkeypatch.setattr(plain_plan, "finish", finish)
    made = rewrite(parse(GELU), options)
    with pytest.raises(InvalidArgument, match="'h' is not"):
        InferenceSession(few[0].model.SerializeToString())
    InferenceSession(made.model.SerializeToString())
    assert {"h", "t"} <= {*made.plain.pinned}
    monkeypatch.setattr(plain_plan, "finish", lambda draft, *_: finished_with(draft, (), ["h"]))
    with pytest.raises(ModelRefusedError, match="'h' is not"):
        rewrite(parse(GELU), options)


def test_a_file_that_is_refused_without_pins_gets_all() -> None:
    """A node of the plan itself reads what a fusion takes away."""
    text = GELU.replace("float[64, 64] y)", "float[64, 64] y, float[64, 64] z)")
    model = parse(text.replace("[y]", "[z] z = Exp(h) [y]"))
    with pytest.raises(InvalidArgument, match="'h' is not"):
        InferenceSession(model.SerializeToString())
    options = RewriteOptions(parse_budget("1MB"), session="default", optimize="none", effort=1)
    InferenceSession(rewrite(model, options).model.SerializeToString())


def test_equal_bits_are_claimed_only_where_both_files_are_laid_out_alike() -> None:
    """The new file's pins keep the product behind the transposition; the original's is before."""
    options = RewriteOptions(parse_budget("1MB"), session="default", optimize="none", effort=1)
    turned = rewrite(parse(TURNED), options)
    assert turned.unlike_nodes
    assert "up to rounding: it fuses or lays out" in text_of(tell_rewrite(turned))
    assert rewrite(parse(STORED), options).unlike_nodes
    assert rewrite(parse(IN_BODY), options).unlike_nodes
    alike = rewrite(parse(FOLDED), options)
    assert alike.unlike_nodes == 0
    assert "outputs are bit-identical to the original in a plain session" in text_of(
        tell_rewrite(alike)
    )
    over = text_of(tell_rewrite(replace(alike, budget_bytes=1)))
    assert over.startswith("later runs take ")
    assert ", OVER the budget; the first run: " in over
