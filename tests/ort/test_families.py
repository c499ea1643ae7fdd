"""Training graphs of families of networks, small: they run, their gradients are PyTorch's, and
nothing of them had to be assumed (skipped where torch and its exporter are not there)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memplan
from helpers.captured_nets import FAMILIES
from helpers.gradients import runtime
from helpers.models import ROOT, load_benchmark
from helpers.with_torch import torch

TOLERANCE = 1e-4
"""Of float32, relative to the largest entry of each gradient."""
NOISE = 1e-6
"""Relative to the largest entry of all: a bias that the next batch norm takes out again has a
gradient of zero, and both compute rounding errors."""


def drawn(name: str) -> tuple[Any, tuple[Any, ...]]:
    """A small network with no parameter at zero, and a batch."""
    torch.manual_seed(0)
    module = FAMILIES[name].make()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return module, FAMILIES[name].batch()


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_are_those_of_pytorch(name: str) -> None:
    module, inputs = drawn(name)
    # What the check of capture is, too: here it is not its own judge.
    made = memplan.capture((module, None, inputs), weights="none", check=False)
    feeds = {key: p.detach().numpy() for key, p in module.named_parameters()}
    feeds |= {key: b.detach().clone().numpy() for key, b in module.named_buffers()}
    feeds |= {key: tensor.numpy() for key, tensor in zip(made.batch, inputs, strict=True)}
    wanted = {value.name for value in made.model.graph.input}
    found = runtime(made.model, {key: array for key, array in feeds.items() if key in wanted})
    loss = module(*inputs)
    loss.backward()
    np.testing.assert_allclose(found["loss"], loss.detach().numpy(), rtol=TOLERANCE)
    grads = {key: parameter.grad.numpy() for key, parameter in module.named_parameters()}
    noise = NOISE * max(float(np.abs(grad).max()) for grad in grads.values())
    for key, grad in grads.items():
        error = float(np.abs(found[f"{key}_grad"] - grad).max())
        assert error <= TOLERANCE * float(np.abs(grad).max()) + noise, (key, error)


def test_command_writes_files_that_need_no_assumption(tmp_path: Path) -> None:
    wanted = ["--only", "vit", "--only", "unet"]
    load_benchmark("graphs").main([str(tmp_path), "--size", "tiny", *wanted])
    files = sorted(tmp_path.glob("*.onnx"))
    assert [path.name for path in files] == ["unet3_tiny.onnx", "vit_tiny.onnx"]
    for path in files:
        analysis = memplan.analyze(path)
        assert analysis.assumptions == ()
        assert analysis.stashes
        assert str(ROOT).encode() not in path.read_bytes()
