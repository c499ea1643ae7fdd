"""Models on PyTorch's meta device: what has no value is an input, or an error that names it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import memplan
from helpers.models import ROOT
from helpers.with_torch import nn, torch
from memplan.errors import EXIT_USAGE, ModelError, UsageError
from memplan.ir.roles import Role

pytestmark = pytest.mark.slow


class Net(nn.Module):  # type: ignore[name-defined,misc]
    """A linear layer, a buffer, and whatever else."""

    def __init__(self, rest: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer, self.rest = nn.Linear(4, 4), rest
        self.register_buffer("factor", torch.arange(4.0), persistent=False)

    def forward(self, x: Any) -> Any:
        return self.rest(self.layer(x) * self.factor).sum()


def step(device: str, rest: Callable[[Any], Any] = torch.tanh, batch: str = "") -> Any:
    with torch.device(device):
        model = Net(rest)
    x = torch.ones(2, 4, device=batch or device)
    return memplan.TorchStep(model, None, {"x": x}, torch.optim.SGD(model.parameters(), lr=0.5))


def inputs(captured: memplan.Capture) -> set[str]:
    return {value.name for value in captured.model.graph.input}


def test_code_may_name_the_meta_device() -> None:
    def rest(h: Any) -> Any:
        places = torch.arange(4, device="meta") + torch.ones(4, device=torch.device("meta"))
        return (h * places).log_softmax(-1)

    assert memplan.capture(step("meta", rest)).trained == ("layer.weight", "layer.bias")


def llama_step(device: str, folder: Path) -> Any:
    """That of docs/plan-for-absent-gpu.md, at small sizes."""
    text = (ROOT / "docs/examples/llama.py").read_text()
    large, small = "4096, 14336, 32, 8, 128256, 8192", "64, 128, 4, 2, 128, 32"
    assert (text.count(large), text.count('"meta"')) == (1, 1)
    file, scope = folder / f"{device}.py", dict[str, Any]()
    file.write_text(text.replace(large, small).replace('"meta"', f'"{device}"'))
    exec(compile(file.read_text(), file, "exec"), scope)
    return scope["make_step"](depth=2)


def test_the_graph_is_that_of_the_same_model_with_values(tmp_path: Path) -> None:
    found = memplan.capture(llama_step("meta", tmp_path))
    same = memplan.capture(llama_step("cpu", tmp_path), weights="none")
    nodes = [
        [(node.op_type, *node.input, *node.output) for node in each.model.graph.node]
        for each in (found, same)
    ]
    assert nodes[0] == nodes[1]
    assert inputs(found) == inputs(same) > {"rates", "embed.weight"}
    assert (found.weights, same.weights) == ("none", "none")
    assert any("meta device" in note for note in found.notes)
    assert not any("meta device" in note for note in same.notes)
    analysis = memplan.analyze(found.model, state="in-place")
    assert not analysis.inexact


def test_what_has_no_value_is_an_input_of_state() -> None:
    found = memplan.capture(step("meta"))
    assert inputs(found) == {"layer.weight", "layer.bias", "factor", "x", "lr"}
    assert found.contract.roles["factor"] is Role.FROZEN
    assert "factor" not in found.contract.new_values.values()


def test_weights_left_out_are_inputs_whether_they_are_trained_or_not() -> None:
    """On the CPU, too: nothing reads what is not defined, and values that are fed give the loss."""
    given = step("cpu")
    given.model.layer.bias.requires_grad_(False)
    found = memplan.capture(given, weights="none")
    assert inputs(found) == {"layer.weight", "layer.bias", "factor", "x", "lr"}
    assert found.contract.roles["layer.bias"] is Role.FROZEN
    onnx.checker.check_model(found.model, full_check=True)
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(found.model.SerializeToString())
    values = {**given.model.state_dict(), "factor": given.model.factor}
    feeds = {name: value.detach().numpy() for name, value in values.items()}
    (loss,) = session.run(["loss"], {**feeds, "x": np.ones((2, 4), np.float32)})
    assert loss == pytest.approx(given.model(torch.ones(2, 4)).item(), rel=1e-6)


@pytest.mark.parametrize("place", ["embed", "copy"])
def test_values_that_are_not_there_cannot_be_written(place: str, tmp_path: Path) -> None:
    output = tmp_path / "step.onnx"
    with pytest.raises(UsageError, match="is on the meta device and has no values") as caught:
        memplan.capture(step("meta"), output, weights=place)
    assert "--weights none" in caught.value.hint
    assert not list(tmp_path.iterdir())


def test_a_constant_without_a_value_is_named() -> None:
    def rest(y: Any) -> Any:
        return y * torch.tensor([1.0, 2.0, 3.0, 4.0], device=y.device)

    said = r"the constant '.*tensor.*' of shape \[4\].*test_meta\.py:\d+"
    with pytest.raises(ModelError, match=said):
        memplan.capture(step("meta", rest))


def test_constants_that_are_computed_stay_so() -> None:
    def rest(y: Any) -> Any:
        return y * torch.arange(4, device=y.device) + torch.full((4,), 2.0, device=y.device)

    found = memplan.capture(step("meta", rest))
    assert not memplan.analyze(found.model).inexact


def test_two_devices_are_refused_in_words() -> None:
    with pytest.raises(UsageError, match="is on the meta device, 'x' on cpu") as caught:
        memplan.capture(step("meta", batch="cpu"))
    assert caught.value.exit_code == EXIT_USAGE
    with pytest.raises(UsageError, match=r"is on the meta device, '.*' on cpu"):
        memplan.capture(step("cpu", batch="meta"))
