"""Plain sessions: what loading twice leaves, and what later runs hold beside a Loop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from helpers.graphs import parse
from memplan.api.rewrite.goal import RewriteOptions
from memplan.api.rewrite.rewriting import rewrite
from memplan.planning.plain.as_loaded import as_loaded
from memplan.runtime.inputs import synthesize
from memplan.runtime.measure import measure
from memplan.runtime.messages import RunRequest
from memplan.shapes.prepare import load
from memplan.simulate.opened import opened
from memplan.simulate.pattern import later_runs
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import simulate
from memplan.units import parse_size

PLAIN = session_kind("default")
# The runtime writes a product with a bias as Gemm, behind a Reshape that the file has, too.
TWICE = """g (float[4, 8, 16] x, float[16, 16] w, float[16] b) => (float[16, 16] g, float[32] y)
 <int64[2] rows = {32, 16}, int64[1] last = {-1}>
 { h = Tanh(x) m = MatMul(h, w) a = Add(m, b) e = Exp(a) f = Reshape(e, rows)
   r = Reshape(h, rows) t = Transpose <perm: ints = [1, 0]>(r) g = MatMul(t, f)
   y = ReduceSum <keepdims: int = 0>(f, last) }"""
LOOP = """g (float[64, 64] x) => (float[64, 64] y) <int64 m = {5}, bool c = {1}>
 { e = Exp(x) a = Loop (m, c, e) <body = b (int64 i, bool cc, float[64, 64] s)
   => (bool co, float[64, 64] so) { co = Identity(cc) t = Sin(s) so = MatMul(t, x) }>
   y = Add(a, e) }"""


def test_a_plan_for_plain_sessions_has_no_node_that_they_merge(tmp_path: Path) -> None:
    path = tmp_path / "new.onnx"
    options = RewriteOptions(parse_size("100%"), session="default", effort=1)
    onnx.save(rewrite(parse(TWICE), options).model, path)
    held = as_loaded(opened(load(path, {})), PLAIN)
    assert held.unchanged, held.gone


@pytest.mark.parametrize("threads", [1, 2])
def test_later_runs_of_a_loop_are_predicted(tmp_path: Path, threads: int) -> None:
    path, inputs = tmp_path / "loop.onnx", tmp_path / "in.npz"
    onnx.save(parse(LOOP), path)
    model = opened(load(path, {}))
    np.savez(inputs, **synthesize(model.graph))
    held = as_loaded(model, PLAIN)
    timeline = simulate(held.model.graph, held.kind)
    request = RunRequest("default", "cpu", runs=0, threads=threads)
    found = measure(path, request, inputs, tmp_path / "out.npz", [], 120.0, None)
    assert timeline.dynamic_peak_bytes == found.dynamic_bytes
    assert later_runs(timeline).dynamic_peak_bytes == found.second_run_dynamic_bytes
