"""bfloat16 on the CPU, in the few operators that have kernels: predicted = measured, and proved."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

import memplan
from helpers.graphs import parse
from helpers.running import Memplan
from memplan.errors import UsageError

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


TRAINED = """g (float[3] x, bfloat16[3] w) => (float loss, bfloat16[3] w_new)
  <bfloat16[3] w = {0, 0, 0}> {
  wide = Cast <to: int = 1> (w)
  part = Mul (wide, x)
  loss = ReduceSum <keepdims: int = 0> (part)
  down = Sub (wide, x)
  w_new = Cast <to: int = 16> (down)
}"""
SLOPES = [0.25, 0.5, 1]
BATCH = np.array([1, 2, 3], ml_dtypes.bfloat16)


def trained(text: str = TRAINED) -> onnx.ModelProto:
    """The step, whose parameter begins at 1, 2, -3."""
    model = parse(text)
    start = np.array([1, 2, -3], ml_dtypes.bfloat16)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(start, "w"))
    return model


def test_a_checkpoint_that_was_written_before_ml_dtypes_goes_on(tmp_path: Path) -> None:
    """It has bfloat16 as a structure of 16 bits; one that is written now, as two bytes."""
    written = Path(__file__).parents[1] / "data/bfloat16.checkpoint.npz"
    onnx.save(trained(), tmp_path / "step.onnx")
    anew = memplan.Trainer(tmp_path / "step.onnx")
    anew.step({"x": np.array(SLOPES, np.float32)})
    held = memplan.Trainer(tmp_path / "step.onnx", resume=written)
    assert held.steps == 1
    for trainer in (anew, held):
        state = trainer.state_dict()["w"]
        assert state.dtype == ml_dtypes.bfloat16
        assert state.tolist() == [0.75, 1.5, -4]
    assert held.step({"x": SLOPES}) == 0.75 * 0.25 + 1.5 * 0.5 - 4
    held.save(tmp_path / "now.npz")
    again = memplan.Trainer(tmp_path / "step.onnx", resume=tmp_path / "now.npz")
    assert again.steps == 2
    assert again.state_dict()["w"].tolist() == [0.5, 1, -5]


@pytest.mark.parametrize(
    "given",
    [BATCH, BATCH.tolist(), BATCH.view("V2")],
    ids=["array", "list", "as numpy writes it"],
)
def test_batches_of_bfloat16(given: Any) -> None:
    text = TRAINED.replace("float[3] x, b", "bfloat16[3] x, b", 1).replace(
        "part = Mul (wide, x)", "steps = Cast <to: int = 1> (x)\n  part = Mul (wide, steps)"
    )
    trainer = memplan.Trainer(trained(text.replace("Sub (wide, x)", "Sub (wide, steps)")))
    assert trainer.step({"x": given}) == 1 + 4 - 9
    with pytest.raises(UsageError, match=r"'x' is float32\[3\], the step wants bfloat16\[3\]"):
        trainer.step({"x": np.ones(3, np.float32)})


def test_values_are_rounded_to_nearest_even_and_nan_stays_nan() -> None:
    given = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 - 2**-10], np.float32)
    trainer = memplan.Trainer(trained(), weights={"w": given})
    assert trainer.state_dict()["w"].tolist() == [1, 1 + 4 * 2**-8, 1]
    low = np.array([0x7F800001, 0x3F800000, 0], np.uint32).view(np.float32)  # its upper half: inf
    assert np.isnan(low[0])
    found = memplan.Trainer(trained(), weights={"w": low}).state_dict()["w"]
    assert np.isnan(found[0])
    assert found[1:].tolist() == [1, 0]
