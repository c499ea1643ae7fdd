"""Constants that a rewritten file does not need any more."""

from __future__ import annotations

from pathlib import Path

import memplan
from helpers.graphs import parse
from helpers.odd_models import saved
from memplan.ops.memory import has_effects


def test_constants_whose_readers_are_gone_go_too(tmp_path: Path) -> None:
    model = parse("""g (float[2,3] x) => (float[2,3] y)
      { s = Constant <value_ints: ints = [2, 3]> ()  a = Reshape (x, s)  b = Tanh (a)
        unread = Constant <value_float: float = 1.5> ()  y = Exp (b) }""")
    path = saved(model, tmp_path)
    memplan.rewrite(path, memplan.RewriteOptions("100%", strategy="greedy"), tmp_path / "new.onnx")
    kept = [node.op for node in memplan.analyze(tmp_path / "new.onnx").graph.nodes]
    assert kept == ["Tanh", "Exp"]


def test_operators_of_onnx_do_nothing_but_make_their_outputs() -> None:
    assert not any(map(has_effects, (":Constant", ":NonMaxSuppression", ":If", ":Dropout")))
    assert all(map(has_effects, ("acme:Log", "com.microsoft:YieldOp")))
