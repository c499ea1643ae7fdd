"""``sample_models/README.md``: ``memplan capture`` makes them; they compute what PyTorch does."""

import copy
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import onnx
import pytest

from helpers.models import SAMPLES
from helpers.with_torch import torch
from memplan.pytorch.load_function import returned_by

TOLERANCE = 1e-4
"""Of the largest element of each output, in float32."""
CLASSES = {"mlp_adamw": 10}
TOKENS = 512
STEPS_TAKEN = 100
Arrays = dict[str, np.ndarray]


def _made() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_models", SAMPLES / "make_models.py")
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKER = _made()
NAMES = tuple(sorted(path.stem for path in SAMPLES.glob("*.onnx")))


@pytest.mark.parametrize("name", MAKER.NAMES)
def test_making_a_sample_again_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    installed = {package: version(package).partition("+")[0] for package in MAKER.VERSIONS}
    if installed != MAKER.VERSIONS:
        pytest.skip(f"made with {MAKER.VERSIONS}, here is {installed}")
    MAKER.make(name, tmp_path, check=False)
    assert (tmp_path / f"{name}.onnx").read_bytes() == (SAMPLES / f"{name}.onnx").read_bytes()


def _step(name: str) -> Any:
    """The sample's step with a random batch, and an optimizer in the middle of a training: after
    zero moments, the first update is the sign of a gradient, be that rounding noise."""
    torch.manual_seed(0)
    step = returned_by(SAMPLES / "nets.py", name)
    for key, tensor in step.batch.items():
        if tensor.is_floating_point():
            tensor.normal_()
        else:
            tensor.random_(CLASSES.get(name, TOKENS) if key == "labels" else TOKENS)
    if step.optimizer is not None:
        for parameter in step.model.parameters():
            step.optimizer.state[parameter] = {
                "step": torch.tensor(float(STEPS_TAKEN)),
                "exp_avg": 1e-3 * torch.randn_like(parameter),
                "exp_avg_sq": 1e-6 * (1 + torch.rand_like(parameter)),
            }
    return step


def _renewed(step: Any, ending: str = "") -> dict[str, Any]:
    """The tensors of a step that it renews, by the names of inputs, or outputs, of the file."""
    found = dict(step.model.named_buffers())
    if step.optimizer is not None:
        for name, parameter in step.model.named_parameters():
            held = step.optimizer.state[parameter]
            found[name] = parameter.detach()
            found[f"{name}.exp_avg"] = held["exp_avg"]
            found[f"{name}.exp_avg_sq"] = held["exp_avg_sq"]
    return {f"{name}{ending}": tensor for name, tensor in found.items()}


def _run(path: Path, feeds: Mapping[str, Any]) -> tuple[Arrays, list[np.ndarray]]:
    """All outputs, and the masks of all Dropouts."""
    import onnxruntime

    model = onnx.load(path)
    names = [value.name for value in model.graph.output]
    masks = [node.output[1] for node in model.graph.node if node.op_type == "Dropout"]
    for name in masks:
        model.graph.output.add(name=name)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    taken = {value.name for value in model.graph.input}
    values = {name: tensor.numpy() for name, tensor in feeds.items() if name in taken}
    found = dict(zip([*names, *masks], session.run([*names, *masks], values), strict=True))
    return found, [found.pop(name) for name in masks]


@contextmanager
def _replaying(masks: list[np.ndarray]) -> Iterator[None]:
    """Dropout keeps what the masks, one per call, say: it is compared at its real ratio."""
    kept = iter(masks)

    def dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return x if p == 0 else x * torch.from_numpy(next(kept)) / (1 - p)

    with mock.patch.object(torch.nn.functional, "dropout", dropout):
        yield
    assert not [*kept], "more Dropout nodes than the model has"


def _expected(step: Any, masks: list[np.ndarray]) -> dict[str, Any]:
    """What the file is to give, by eager PyTorch; the step is taken."""
    with _replaying(masks):
        loss = step.model(*step.batch.values())
    loss.backward()
    found = {"loss": loss.detach()}
    if step.optimizer is None:
        found.update({f"{name}_grad": p.grad for name, p in step.model.named_parameters()})
    else:
        step.optimizer.step()
        found["step_new"] = torch.tensor(STEPS_TAKEN + 2)
    return {**found, **_renewed(step, "_new")}


@pytest.mark.parametrize(
    ("name", "rows"), [("mlp_adamw", 0), ("gpt_dropout", 0), ("gpt_dynamic", 5)]
)
def test_a_sample_computes_what_pytorch_does(name: str, rows: int) -> None:
    """The update, Dropout, a size that is not the example's; the rest: test_capture."""
    step = _step(name)
    if rows:
        step.batch.update({key: tensor[:rows] for key, tensor in step.batch.items()})
    weights = {key: parameter.detach() for key, parameter in step.model.named_parameters()}
    number = torch.tensor(STEPS_TAKEN + 1)
    feeds = copy.deepcopy({**weights, **_renewed(step), **step.batch, "step": number})
    found, masks = _run(SAMPLES / f"{name}.onnx", feeds)
    expected = _expected(step, masks)
    assert found.keys() == expected.keys()
    for output, tensor in expected.items():
        value = tensor.numpy()
        assert found[output].shape == value.shape
        scale = max(float(np.abs(value).max()), 1e-30)
        error = float(np.abs(found[output] - value).max()) / scale
        assert error <= TOLERANCE, output
