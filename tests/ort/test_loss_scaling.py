"""A step whose loss is scaled, planned at half of its peak: proved, run, and trained with."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from helpers.graphs import parse
from helpers.training_steps import BATCH, chain, weights
from memplan import GradOptions, RewriteOptions, Trainer, ValidateOptions, grad, rewrite, validate
from memplan.units import parse_size

NAMES = "abcdefgh"


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight layers, of which activations are most of the memory."""
    path = tmp_path_factory.mktemp("scaled") / "step.onnx"
    body = chain("x", NAMES) + "  q = Mul(h, h)  loss = ReduceSum <keepdims = 0> (q)"
    model = parse(f"g ({BATCH} x, {weights(NAMES)}) => (float loss) {{ {body} }}")
    rng = np.random.default_rng(0)
    options = GradOptions(
        "loss",
        wrt=tuple(f"w{name}" for name in NAMES),
        optimizer="adamw{clip_norm=1}",
        loss_scale="dynamic{init_scale=1e38,backoff_factor=1e-6}",
    )
    graph = grad(model, options)
    for name in graph.wrt:
        value = rng.standard_normal((32, 32)).astype(np.float32) / 6
        graph.model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    onnx.save(graph.model, path)
    return path


def test_a_plan_at_half_of_the_peak_is_proved_and_runs_as_predicted(
    step: Path, tmp_path: Path
) -> None:
    target = tmp_path / "fits.onnx"
    options = RewriteOptions(budget=parse_size("50%"), state=("in-place",), strategy="greedy")
    rewrite(step, options, target)
    x = np.random.default_rng(1).standard_normal((512, 32)).astype(np.float32)
    state = {
        f"w{name}.{kind}": np.full((32, 32), 0.01, np.float32)
        for name in NAMES
        for kind in ("exp_avg", "exp_avg_sq")
    }
    np.savez(tmp_path / "inputs.npz", x=x, loss_scale=np.asarray(8, np.float32), **state)
    given = ValidateOptions(runs=1, plain=False, inputs=tmp_path / "inputs.npz")
    found = validate(step, target, given)
    assert found.proved
    assert all(run.as_predicted for run in found.runs)
    first, second = (Trainer(path, threads=1, measure=True) for path in (step, target))
    told = []
    for _ in range(3):
        assert first.step(x=x) == second.step(x=x)
        assert first.skipped == second.skipped
        told.append(first.skipped)
    assert told == [True, False, False]
    wanted = {name: value.tobytes() for name, value in first.state_dict().items()}
    assert {name: value.tobytes() for name, value in second.state_dict().items()} == wanted
    for trainer in (first, second):
        predicted = trainer.predicted()
        assert set(trainer.measured_peaks()) == {predicted.dynamic_bytes}
