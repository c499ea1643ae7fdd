"""A step whose dropouts count: rewritten, trained, stopped, resumed and exported."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import memplan
from helpers.graphs import parse
from memplan import RewriteOptions, Trainer, ValidateOptions, rewrite, validate
from memplan.api.grad.differentiate import grad
from memplan.api.grad.training_graph import GradOptions
from memplan.api.rewrite.rewrite_result import Rewrite
from memplan.ir.roles import Role
from memplan.units import parse_budget

LAYERS, WIDTH, RATIO = "abcde", 32, 0.25


def forward() -> onnx.ModelProto:
    body = "  ".join(
        f"{name}0 = MatMul ({last}, w{name})  {name}1 = Tanh ({name}0)  "
        f"{name}, {name}m = Dropout <seed = {seed}> ({name}1, ratio, on)"
        for seed, (last, name) in enumerate(zip("xabcd", LAYERS, strict=True), 7)
    )
    model = parse(f"""g (float[512, {WIDTH}] x) => (float loss, float[512, {WIDTH}] e)
      <float ratio = {{{RATIO}}}, bool on = {{1}}>
      {{ {body}  loss = ReduceMean <keepdims = 0> (e) }}""")
    generator = np.random.default_rng(0)
    for name in LAYERS:
        weight = generator.normal(size=(WIDTH, WIDTH)).astype(np.float32) / np.sqrt(WIDTH)
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(weight), f"w{name}"))
    return model


OPTIONS = GradOptions("loss", optimizer="adamw{lr=0.01}", dropout="counter{seed=5}")
BATCHES = np.random.default_rng(3).normal(size=(6, 512, WIDTH)).astype(np.float32)


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("counter") / "step.onnx"
    grad(forward(), OPTIONS, target)
    return target


def at(path: Path, budget: str, optimize: str = "extended") -> Rewrite:
    searched = "search{iterations=6}"
    options = RewriteOptions(parse_budget(budget), strategy=searched, optimize=optimize)
    return rewrite(path, options, path.with_name("fits.onnx"), force=True)


def test_masks_are_made_again_and_are_the_same_bits(step: Path, tmp_path: Path) -> None:
    fits = at(step, "55%")
    assert fits.output is not None
    assert fits.equivalence.proved
    again = [n for n in onnx.load(fits.output).graph.node if n.op_type == "Greater"]
    assert len(again) > len(LAYERS)
    found = validate(step, fits.output, ValidateOptions(runs=1))
    assert found.as_json()["equality"] == "bitwise"
    for side in ("original", "rewritten"):
        figures = found.as_json()[side]
        assert isinstance(figures, dict)
        assert figures["predicted_peak_bytes"] == figures["measured_peak_bytes"]
    drawn = tmp_path / "drawn.onnx"
    grad(forward(), replace(OPTIONS, dropout="operator"), drawn)
    assert fits.plan.extra_cost_fraction < at(drawn, "55%").plan.extra_cost_fraction


def test_a_run_goes_on_to_the_bit(step: Path, tmp_path: Path) -> None:
    """Whether it is stopped in between, in which file, and by how many threads."""
    fits = at(step, "60%", "none").output
    assert fits is not None
    whole = Trainer(step, threads=1)
    losses = [whole.step({"x": x}) for x in BATCHES]
    assert len(set(losses)) == len(losses)
    begun = Trainer(step, threads=1)
    before = [begun.step({"x": x}) for x in BATCHES[:3]]
    begun.save(tmp_path / "saved")
    resumed = Trainer(fits, threads=1)
    resumed.resume(tmp_path / "saved")
    assert before + [resumed.step({"x": x}) for x in BATCHES[3:]] == losses
    ours, theirs = whole.state_dict(), resumed.state_dict()
    assert ours["dropout_step"] == len(BATCHES) + 1
    assert all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)


def test_a_captured_step_is_held_against_pytorch() -> None:
    """With PyTorch's own draws in place of the masks; of the two dropouts in it, one counts."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    nn = torch.nn
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.AlphaDropout(0.2), nn.Linear(8, 1))

    def loss(model: Any, x: Any) -> Any:
        return model(x).square().mean()

    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    step = memplan.TorchStep(net.train(), loss, {"x": torch.randn(5, 6)}, optimizer)
    found = memplan.capture(step, dropout="counter{seed=2}", dynamic="batch")
    assert found.check.verdict == "equal"
    assert found.check.draws == 2
    assert (found.counted_masks, found.dropout) == (1, "counter{seed=2}")
    assert any("1 random operator still drawn" in note for note in found.notes)
    assert found.contract.roles["dropout_step"] is Role.STEP_COUNTER
    assert found.contract.new_values["dropout_step_new"] == "dropout_step"
