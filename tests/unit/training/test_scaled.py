"""Training with a step whose loss is scaled: what is skipped, told, guarded and resumed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from helpers.networks import FAMILIES, batches
from memplan import AccumulatingTrainer, GradOptions, Trainer, grad
from memplan.api.grad.training_graph import TrainingGraph
from memplan.errors import ModelError
from memplan.report.tell.run import tell_run
from memplan.training.train import TrainOptions, run

HUGE = "dynamic{init_scale=3e38,growth_interval=3}"


def scaled(family: str = "mlp", scale: str = HUGE, *, apart: bool = False) -> TrainingGraph:
    options = GradOptions("loss", optimizer="adamw", loss_scale=scale, own_update=apart)
    return grad(FAMILIES[family](), options)


def large(model: onnx.ModelProto, count: int) -> list[dict[str, Any]]:
    """Batches of which every second one has gradients above 1."""
    found = batches(model, count)
    for batch in found[::2]:
        batch["x"] = 50 * batch["x"]
    return found


def bits(state: dict[str, Any]) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in state.items()}


def test_a_skipped_step_is_told_and_changes_nothing_in_place() -> None:
    graph = scaled()
    trainer = Trainer(graph.model, threads=1)
    assert not [b for b in trainer.bindings if not b.in_place]
    assert trainer.loss_scale is None
    scales, skipped = [], []
    for report in trainer.train(large(graph.model, 6)):
        scales.append(report.loss_scale)
        skipped.append(report.skipped)
        assert np.isfinite(report.loss)
        assert (trainer.loss_scale, trainer.skipped) == (scales[-1], skipped[-1])
    assert skipped[0]
    assert not all(skipped)
    for k, skip in enumerate(skipped[:-1]):
        assert (scales[k + 1] == scales[k] / 2) == skip
    state = trainer.state_dict()
    assert state["step"] == 1 + skipped.count(False)
    assert trainer.steps == 6


def test_state_is_the_same_in_place_and_apart() -> None:
    graph = scaled("cnn")
    own, apart = Trainer(graph.model, threads=1), Trainer(graph.model, threads=1, in_place=False)
    skipped = []
    for batch in large(graph.model, 4):
        assert own.step(batch) == apart.step(batch)
        skipped.append(own.skipped)
    assert len(set(skipped)) == 2
    assert bits(own.state_dict()) == bits(apart.state_dict())


def test_the_peak_is_as_predicted_in_skipped_steps_too() -> None:
    graph = scaled("cnn")
    trainer = Trainer(graph.model, threads=1, measure=True)
    for batch in large(graph.model, 3):
        trainer.step(batch)
    predicted = trainer.predicted()
    assert set(trainer.measured_peaks()) == {predicted.dynamic_bytes}


def test_run_reports_the_scale(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    graph = scaled()
    path, data = tmp_path / "step.onnx", large(graph.model, 4)
    onnx.save(graph.model, path)
    arrays = {name: np.stack([batch[name] for batch in data]) for name in data[0]}
    np.savez(tmp_path / "data.npz", **arrays)
    options = TrainOptions(
        data=tmp_path / "data.npz", ready_batches=True, steps=4, shuffle=False, threads=1
    )
    result = run(path, options)
    found = json.loads(json.dumps(result.as_json()))
    assert found["skipped_steps"] == list(result.skipped)
    assert 1 in result.skipped
    assert found["loss_scale"] == result.reports[-1].loss_scale
    lines = [str(part) for part in tell_run(result).parts]
    assert any("skipped, as a gradient was not finite: 1" in text for text in lines)
    assert not recwarn.list  # of a scale that overflows on purpose, on stderr


def test_several_batches_share_one_scale() -> None:
    """One whose gradients are not finite skips the update of all; the sums begin at 0 again."""
    graph = scaled(apart=True)
    trainer = AccumulatingTrainer(graph.model, graph.update.model, threads=1)
    data = batches(graph.model, 5)
    data[1]["x"] = 50 * data[1]["x"]
    before = bits(trainer.state_dict())
    trainer.step(data[:2])
    assert trainer.skipped
    assert trainer.loss_scale == np.float32(3e38)
    after = bits(trainer.state_dict())
    assert {name for name in after if after[name] != before[name]} == {"loss_scale"}
    while trainer.skipped:
        trainer.step(data[2:4])
    fresh = AccumulatingTrainer(graph.model, graph.update.model, threads=1)
    fresh.load_state_dict({"loss_scale": np.float32(trainer.loss_scale)}, strict=False)
    fresh.step(data[2:4])
    assert not fresh.skipped
    own, other = trainer.state_dict(), fresh.state_dict()
    assert bits(own) == bits(other)


def test_a_fixed_scale_is_the_same_in_both_files() -> None:
    graph, plain = scaled(scale="1024", apart=True), scaled(scale="none", apart=True)
    assert graph.update is not None
    assert plain.update is not None
    data = batches(graph.model, 2)
    wanted = AccumulatingTrainer(plain.model, plain.update.model, threads=1)
    wanted.step(data)
    for how in ("default", "given", "set"):
        trainer = AccumulatingTrainer(graph.model, graph.update.model, threads=1)
        if how == "set":
            trainer.trainers[1].set("loss_scale", 4.0)
        trainer.step(data, **({"loss_scale": 64.0} if how == "given" else {}))
        assert not trainer.skipped
        for name, value in wanted.state_dict().items():
            assert value.tobytes() == trainer.state_dict()[name].tobytes(), (how, name)
    with pytest.raises(ModelError, match="'loss_scale' is in one of them only"):
        AccumulatingTrainer(graph.model, plain.update.model)
