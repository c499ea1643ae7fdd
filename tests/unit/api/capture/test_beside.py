"""What a captured step has beside loss and update: metrics, frozen weights as inputs, averages."""

import csv
import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import memplan
from helpers.torch_steps import captured, outputs_of
from helpers.with_torch import functional, nn, torch
from memplan.errors import UsageError
from memplan.ir.roles import Role
from memplan.simulate.explain import TensorClass
from memplan_cli.main import main

pytestmark = pytest.mark.slow


class Tuned(nn.Module):  # type: ignore[name-defined,misc]
    """A frozen body in evaluation mode, a head, and buffers of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, 3)
        self.register_buffer("shift", torch.randn(8))
        self.register_buffer("order", torch.arange(7, -1, -1))
        self.register_buffer("passing", torch.randn(8), persistent=False)
        self.body.eval().requires_grad_(False)

    def forward(self, x: Any) -> Any:
        return self.head((self.body(x) + self.shift + self.passing)[:, self.order])


def batch() -> dict[str, Any]:
    torch.manual_seed(1)
    return {"x": torch.randn(5, 4), "labels": torch.randint(0, 3, (5,))}


def step(loss: Any = None, optimizer: bool = True, **settings: Any) -> memplan.TorchStep:
    torch.manual_seed(0)
    model = Tuned()
    chosen = torch.optim.SGD(model.head.parameters(), 0.1) if optimizer else None
    return memplan.TorchStep(model, loss or plain, batch(), chosen, **settings)


def plain(model: Any, x: Any, labels: Any) -> Any:
    return functional.cross_entropy(model(x), labels)


def told(model: Any, x: Any, labels: Any) -> Any:
    logits = model(x)
    value = functional.cross_entropy(logits, labels)
    right = logits.argmax(-1) == labels
    return value, {
        "accuracy": right.float().mean(),
        "right": right.sum(),
        "same": value,
        "z": logits,
    }


def named(model: Any, x: Any, labels: Any) -> Any:
    value, metrics = told(model, x, labels)
    return {"loss": value, "metrics": metrics, "logits": metrics["z"]}


@pytest.mark.parametrize("loss", [told, named])
def test_metrics_are_outputs_and_change_no_gradient(loss: Any) -> None:
    capture = captured(step(loss, optimizer=False))
    assert capture.metrics == ("accuracy", "right", "same", "z")
    assert capture.contract.loss == "loss"
    feeds = {name: value.numpy() for name, value in batch().items()}
    found = outputs_of(capture.model, feeds)
    with_none = outputs_of(captured(step(optimizer=False)).model, feeds)
    for name, value in with_none.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-7)
    _, wanted = told(step().model, **batch())
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value.detach().numpy(), rtol=1e-5, atol=1e-6)


class Answer(OrderedDict):  # type: ignore[type-arg]
    """As models of transformers answer: a mapping with attributes."""


@pytest.mark.parametrize(
    "beside",
    [lambda logits: Answer(logits=logits), lambda logits: logits, lambda logits: [logits, 1]],
)
def test_what_is_no_dictionary_is_no_metric(beside: Any) -> None:
    def loss(model: Any, x: Any, labels: Any) -> Any:
        logits = model(x)
        return functional.cross_entropy(logits, labels), beside(logits)

    assert captured(step(loss)).metrics == ()


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        ({"accuracy": 0.5}, "'accuracy' is float, not a tensor"),
        ({"x": 1}, "'x' names a metric and something else"),
        ({"loss": 1}, "'loss' names a metric"),
        ({"head.bias_new": 1}, "'head.bias_new' names a metric"),
    ],
)
def test_metrics_that_cannot_be_are_refused(metrics: dict[str, Any], says: str) -> None:
    def loss(model: Any, x: Any, labels: Any) -> Any:
        value = plain(model, x, labels)
        return value, {k: value * v if v == 1 else v for k, v in metrics.items()}

    with pytest.raises(UsageError, match=says):
        captured(step(loss))


def test_a_run_logs_a_column_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "step.onnx"
    captured(step(told), output=path)
    given = ["run", str(path), "--steps", "3", "--log", str(tmp_path / "log.csv")]
    assert main([*given, "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    rows = list(csv.DictReader((tmp_path / "log.csv").open()))
    assert [float(row["accuracy"]) for row in rows] == said["metrics"]["accuracy"]
    assert [float(row["same"]) for row in rows] == said["losses"]
    assert "z" not in rows[0]  # an array is an output, and no column
    assert main([*given[:2], "--steps", "2"]) == 0
    assert "accuracy" in capsys.readouterr().out
    trainer = memplan.Trainer(path, outputs=["z"])
    reports = list(trainer.train([{k: v.numpy() for k, v in batch().items()}]))
    assert reports[0].metrics == trainer.metrics
    assert set(trainer.metrics) == {"accuracy", "right", "same"}
    assert trainer.outputs["z"].shape == (5, 3)


def test_frozen_weights_as_inputs() -> None:
    constants, inputs = (captured(step(frozen=way)) for way in ("constants", "inputs"))
    frozen = {"body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"}
    buffers = {"body.1.running_mean", "body.1.running_var", "shift"}
    assert set(constants.frozen) == set(inputs.frozen) == frozen
    assert constants.frozen_inputs == ()
    assert set(inputs.frozen_inputs) == frozen | buffers
    assert set(inputs.contract.named(Role.FROZEN)) == frozen | buffers
    feeds = {name: value.numpy() for name, value in batch().items()}
    first = memplan.Trainer(constants.model, threads=1)
    second = memplan.Trainer(inputs.model, threads=1)
    assert second.step(feeds) == pytest.approx(first.step(feeds), rel=1e-6)
    moved = step()
    with torch.no_grad():
        for parameter in moved.model.parameters():
            parameter.mul_(0.5)
        moved.model.shift.add_(1)
    state = moved.model.state_dict()
    renewed = {n: state[n].numpy() for n in (*inputs.frozen_inputs, *inputs.trained)}
    second.load_state_dict(renewed, strict=False)
    wanted = plain(moved.model, **batch()).item()
    assert second.step(feeds) == pytest.approx(wanted, rel=1e-5)
    assert second.state_dict()["shift"] == pytest.approx(state["shift"].numpy())


def test_frozen_inputs_are_weights_and_stay(tmp_path: Path) -> None:
    path = tmp_path / "step.onnx"
    capture = captured(step(frozen="inputs"), output=path)
    weights = memplan.analyze(path).by_class[TensorClass.WEIGHTS]
    sizes = sum(value.numel() * 4 for value in step().model.state_dict().values())
    order, count = 8 * 4, 4  # neither the table of indices nor the counter is a weight
    assert weights == sizes - order - count
    trainer = memplan.Trainer(path)
    trainer.load_state_dict({"shift": np.full(8, 3, np.float32)}, strict=False)
    trainer.save(tmp_path / "run.npz")
    again = memplan.Trainer(path, resume=tmp_path / "run.npz")
    assert (again.state_dict()["shift"] == 3).all()
    model = capture.model
    inputs = {value.name for value in model.graph.input}
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in inputs]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    with pytest.raises(UsageError, match="9 parameters without a value"):
        memplan.Trainer(model)


def test_what_an_optimizer_leaves_out_is_frozen_too() -> None:
    left = step()
    left.model.body.requires_grad_(True)
    assert any("--frozen inputs" in note for note in captured(left).notes)
    given = memplan.TorchStep(left.model, plain, left.batch, left.optimizer, frozen="inputs")
    capture = captured(given)
    assert "body.0.weight" in capture.frozen_inputs
    assert not any("--frozen" in note for note in capture.notes)
    with pytest.raises(UsageError, match="unknown frozen 'both'"):
        captured(step(frozen="both"))


def test_options_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "made.py").write_text(
        "import torch, memplan\n"
        "from torch import nn\n"
        "def make_step():\n"
        "    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))\n"
        "    model[0].requires_grad_(False)\n"
        "    batch = (torch.randn(5, 4), torch.randint(0, 2, (5,)))\n"
        "    optimizer = torch.optim.SGD(model[1].parameters(), 0.1)\n"
        "    loss = nn.functional.cross_entropy\n"
        "    return memplan.TorchStep(model, loss, batch, optimizer, ema=0.75)\n"
    )
    given = ["capture", f"{tmp_path}/made.py:make_step", "-o", str(tmp_path / "step.onnx")]
    given += ["--frozen", "inputs"]
    assert main([*given, "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["frozen_inputs"] == ["0.weight", "0.bias"]
    assert said["averages"] == ["1.weight.ema", "1.bias.ema"]
    assert said["ema_decay"] == 0.75
    assert main([*given, "--force"]) == 0
    text = capsys.readouterr().out
    assert "2 frozen parameters, inputs that no step changes: 0.weight, 0.bias" in text
    assert "decay 0.75 unless 'ema_decay' is fed" in text
    model = onnx.load(tmp_path / "step.onnx")
    (decay,) = (t for t in model.graph.initializer if t.name == "ema_decay")
    assert onnx.numpy_helper.to_array(decay) == 0.75
