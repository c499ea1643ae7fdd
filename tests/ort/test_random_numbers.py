"""Random operators without a seed share a stream of numbers: who draws when must not change."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from helpers.graphs import parse
from memplan.api.rewrite.rewriting import RewriteOptions, rewrite
from memplan.units import parse_size

# Branches that do not depend on each other: the second one first would take less memory.
BRANCHES = """g (float[256,256] x, float[256,256] w) => (float loss, float[256,256] wg)
<float r = {{0.5}}, bool yes = {{1}}> {{
  [a] a = MatMul (x, w)
  [d1] b, m1 = Dropout {seed}(a, r, yes)
  [c] c = Concat <axis: int = 0> (x, x, x, x)
  [d2] d, m2 = Dropout {seed}(c, r, yes)
  [k2] f2 = Cast <to: int = 1> (m2)
  [d2b] dd = Mul (d, f2)
  [d2c] d3 = Sigmoid (dd)
  [s1] s1 = ReduceSum <keepdims: int = 0> (d3)
  [k1] f1 = Cast <to: int = 1> (m1)
  [e0] e0 = Mul (b, f1)
  [e] e = Mul (e0, s1)
  [loss] loss = ReduceSum <keepdims: int = 0> (e)
  [gb] gb = Mul (b, s1)
  [wg] wg = MatMul (x, gb)
}}"""


def _ran(path: Path) -> list[np.ndarray]:
    ort.set_seed(5)
    x = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    return ort.InferenceSession(path).run(None, {"x": x, "w": x.T.copy()})


def test_a_rewritten_file_draws_the_same_numbers(tmp_path: Path) -> None:
    original, target = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(parse(BRANCHES.format(seed="")), original)
    options = RewriteOptions(parse_size("100%"), strategy="search{iterations=20}")
    result = rewrite(original, options, target)
    assert result.equivalence.proved
    order = [n.name for n in onnx.load(target).graph.node if n.op_type == "Dropout"]
    assert order == ["d1", "d2"]
    for before, after in zip(_ran(original), _ran(target), strict=True):
        assert before.tobytes() == after.tobytes()


def test_operators_with_seeds_of_their_own_may_change_places(tmp_path: Path) -> None:
    original, target = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(parse(BRANCHES.format(seed="<seed: int = 3>")), original)
    options = RewriteOptions(parse_size("95%"), strategy="search{iterations=20}")
    result = rewrite(original, options, target)
    assert result.equivalence.proved
    order = [n.name for n in onnx.load(target).graph.node if n.op_type == "Dropout"]
    assert order == ["d2", "d1"]


def test_a_budget_that_holds_needs_no_room_for_rules(tmp_path: Path) -> None:
    """The constants by which a Dropout could be rebuilt are not held against it."""
    original = tmp_path / "model.onnx"
    onnx.save(parse(BRANCHES.format(seed="")), original)
    options = RewriteOptions(parse_size("100%"), passes="none", optimize="none", strategy="greedy")
    result = rewrite(original, options, dry_run=True)
    assert result.plan.clones == 0
    assert result.timeline.peak_bytes == result.original.timeline.peak_bytes
