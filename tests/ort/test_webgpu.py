"""WebGPU, really run: on whatever adapter is there, SwiftShader included (docs/any-gpu.md)."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import memplan
from memplan.api.grad.differentiate import grad
from memplan.api.grad.training_graph import GradOptions
from memplan.api.rewrite.goal import RewriteOptions
from memplan.api.rewrite.rewriting import rewrite
from memplan.api.validate.validating import validate
from memplan.errors import RuntimeUnavailableError
from memplan.options import ValidateOptions
from memplan.runtime.cuda_device import start
from memplan.training.trainer import Trainer
from memplan.units import LOWEST, parse_size

ROOT = Path(__file__).resolve().parents[2]
NET = """<ir_version: 10, opset_import: ["": 20]>
net (float[256, 16] x, float[256, 4] target) => (float loss) {
    a0 = MatMul (x, w0)
    h0 = Tanh (a0)
    a1 = MatMul (h0, w1)
    h1 = Gelu (a1)
    a2 = MatMul (h1, w2)
    h2 = Tanh (a2)
    y = MatMul (h2, w3)
    d = Sub (y, target)
    s = Mul (d, d)
    loss = ReduceMean <keepdims = 0> (s)
}"""
SIZES = {"w0": (16, 64), "w1": (64, 64), "w2": (64, 64), "w3": (64, 4)}


@pytest.fixture(scope="module", autouse=True)
def adapter() -> None:
    try:
        start("webgpu")
    except RuntimeUnavailableError as error:
        pytest.skip(f"no WebGPU adapter: {error.message[:200]}")


def step_of(folder: Path, optimizer: str) -> Path:
    model = onnx.parser.parse_model(NET)
    rng = np.random.default_rng(0)
    for name, shape in SIZES.items():
        value = (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    path = folder / f"{optimizer}.onnx"
    grad(model, GradOptions(loss="loss", optimizer=optimizer), path, check=False)
    return path


@pytest.mark.parametrize("share", ["85%", "min"])
def test_a_rewritten_step_has_the_bits_of_the_original(tmp_path: Path, share: str) -> None:
    path, out = step_of(tmp_path, "none"), tmp_path / "less.onnx"
    options = RewriteOptions(
        LOWEST if share == "min" else parse_size(share), provider="webgpu", effort=20
    )
    rewrite(path, options, out)
    found = validate(path, out, ValidateOptions(runs=1))
    assert (found.provider, found.equality, found.order_kept) == ("webgpu", "bitwise", True)
    assert found.surviving_clones == found.clones
    assert found.equivalence.proved
    assert not [each for each in found.findings if each.part in ("nodes", "outputs")]
    assert any("memory is predicted only" in note for note in found.notes)
    told = found.as_json()
    assert told["rewritten"]["measured_peak_bytes"] is None
    assert (told["within_budget"], told["later_runs_within_budget"]) == (None, None)
    assert memplan.load(out).get_providers()[0] == "WebGpuExecutionProvider"


def test_with_adam_nodes_on_the_host_do_not_break_the_order(tmp_path: Path) -> None:
    path, out = step_of(tmp_path, "adamw"), tmp_path / "less.onnx"
    found = rewrite(path, RewriteOptions(parse_size("80%"), provider="webgpu", effort=20), out)
    fences = [node.name for node in found.model.graph.node if node.name.startswith("memplan/")]
    assert fences
    checked = validate(path, out, ValidateOptions(runs=0))
    assert checked.equality == "bitwise"
    assert checked.order_kept
    assert not checked.findings
    assert checked.equivalence.proved
    assert checked.surviving_clones == checked.clones


POOLS = """<ir_version: 10, opset_import: ["": 20]>
net (float[2, 3, 16, 16] x, float[2, 4, 3, 3] target) => (float loss) {
    c = Conv <pads = [1, 1, 1, 1]> (x, k0)
    p = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (c)
    d = Conv (p, k1)
    q = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (d)
    e = Sub (q, target)
    s = Mul (e, e)
    loss = ReduceMean <keepdims = 0> (s)
}"""


def test_portable_max_pools_are_trained_as_on_the_cpu(tmp_path: Path) -> None:
    model, rng = onnx.parser.parse_model(POOLS), np.random.default_rng(0)
    for name, shape in {"k0": (4, 3, 3, 3), "k1": (4, 4, 3, 3)}.items():
        value = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    path = tmp_path / "step.onnx"
    options = GradOptions(loss="loss", optimizer="sgd", portable=True)
    grad(model, options, path, check=False)
    x = rng.integers(-2, 2, (2, 3, 16, 16)).astype(np.float32)  # ties
    batch = {"x": x, "target": rng.standard_normal((2, 4, 3, 3)).astype(np.float32)}
    losses = {}
    for provider in ("cpu", "webgpu"):
        trainer = Trainer(path, lr=1e-3, provider=provider)
        losses[provider] = [trainer.step(**batch) for _ in range(3)]
    np.testing.assert_allclose(losses["webgpu"], losses["cpu"], rtol=1e-4)
    assert losses["cpu"][2] < losses["cpu"][0]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_twenty_steps_have_the_losses_of_the_cpu(tmp_path: Path, optimizer: str) -> None:
    path = step_of(tmp_path, optimizer)
    rng = np.random.default_rng(1)
    batches = [
        {"x": rng.standard_normal((256, 16)), "target": rng.standard_normal((256, 4))}
        for _ in range(20)
    ]
    losses = {}
    for provider in ("cpu", "webgpu"):
        trainer = Trainer(path, lr=0.05 if optimizer == "sgd" else 1e-3, provider=provider)
        steps = [{k: v.astype(np.float32) for k, v in batch.items()} for batch in batches]
        losses[provider] = [trainer.step(**batch) for batch in steps]
    np.testing.assert_allclose(losses["webgpu"], losses["cpu"], rtol=1e-4)


def test_every_probed_operator_is_placed_as_the_runtime_does() -> None:
    script = ROOT / "tests" / "helpers" / "placed_cases.py"
    done = subprocess.run([sys.executable, str(script), "webgpu"], capture_output=True, text=True)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    # Attention with a mask is placed by rules of its own.
    different = [each for each in found["different"] if "com.microsoft:" not in each]
    assert different == []
    assert found["compared"] > 1200
