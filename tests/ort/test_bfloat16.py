"""bfloat16 on the CPU, in the few operators that have kernels: predicted = measured, and proved."""

from __future__ import annotations

import json
from pathlib import Path

import onnx

from helpers.graphs import parse
from helpers.running import Memplan

STEP = """g (bfloat16[64,64] x, bfloat16[64,64] w) => (bfloat16[64,64] y, float loss) {
  [a] a = Cast <to: int = 1> (x)
  [b] b = Cast <to: int = 1> (w)
  [c] c = MatMul (a, b)
  [d] d = Cast <to: int = 16> (c)
  [e] e = Transpose <perm: ints = [1, 0]> (d)
  [f] f = Cast <to: int = 1> (e)
  [g] g = Exp (f)
  [h] h = Mul (g, c)
  [y] y = Cast <to: int = 16> (h)
  [loss] loss = ReduceSum <keepdims: int = 0> (h)
}"""


def test_a_bfloat16_step_takes_what_was_predicted(inside: Memplan, tmp_path: Path) -> None:
    onnx.save(parse(STEP), tmp_path / "step.onnx")
    written = inside("rewrite", "step.onnx", "--budget", "100%", "-o", "out.onnx")
    assert written.returncode == 0, written.stderr
    proof = inside("validate", "step.onnx", "out.onnx", "--runs", "1", "--format", "json")
    found = json.loads(proof.stdout)
    assert found["proved"], found["findings"]
    for side in ("original", "rewritten"):
        assert found[side]["predicted_peak_bytes"] == found[side]["measured_peak_bytes"] == 65_536
