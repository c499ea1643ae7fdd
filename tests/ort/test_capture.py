"""Captured training steps against PyTorch: gradients in float64, trainings in float32."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memplan
from helpers.captured_nets import FAMILIES
from helpers.models import ROOT, load_benchmark
from helpers.torch_steps import captured, gradient_error, net, outputs_of, trained
from helpers.with_torch import torch

TOLERANCE = 1e-6
"""In float64; constants of the exporter are float32."""
NETS = (
    "lstm_both_ways",
    "gru",
    "transformer_encoder",
    "sdpa",
    "convolutions",
    "group_norm",
    "embedding_bag",
)


@pytest.mark.parametrize("name", NETS)
def test_loss_and_gradients_are_those_of_pytorch_in_float64(name: str) -> None:
    module, batch = net(name, wide=True)
    capture = captured(memplan.TorchStep(module, None, batch))
    assert gradient_error(capture, module, batch, lambda: module(*batch)) <= TOLERANCE


@pytest.mark.parametrize("name", FAMILIES)
def test_loss_and_gradients_of_families_are_those_of_pytorch(name: str) -> None:
    module, batch = net(name)
    # What the check of capture is, too: here it is not its own judge.
    capture = captured(memplan.TorchStep(module, None, batch), check=False)
    assert gradient_error(capture, module, batch, lambda: module(*batch)) <= 1e-4


def test_steps_of_families_need_no_assumption(tmp_path: Path) -> None:
    wanted = ["--only", "vit", "--only", "unet"]
    load_benchmark("graphs").main([str(tmp_path), "--size", "tiny", *wanted])
    files = sorted(tmp_path.glob("*.onnx"))
    assert [path.name for path in files] == ["unet3_tiny.onnx", "vit_tiny.onnx"]
    for path in files:
        analysis = memplan.analyze(path)
        assert analysis.assumptions == ()
        assert analysis.stashes
        assert str(ROOT).encode() not in path.read_bytes()


def test_a_network_of_float16_as_a_whole() -> None:
    """PyTorch keeps what a normalization was by in float16, ONNX in float32."""
    torch.manual_seed(0)
    parts = [torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3)]
    module = torch.nn.Sequential(*parts).half()
    x = torch.randn(4, 8).half()

    def loss(model: Any, x: Any) -> Any:
        return model(x).float().square().mean()

    capture = captured(memplan.TorchStep(module, loss, (x,)))
    found = outputs_of(capture.model, {"x": x.numpy()})
    value = loss(module, x)
    value.backward()
    np.testing.assert_allclose(found["loss"], value.detach().numpy(), rtol=2e-3)
    for name, parameter in module.named_parameters():
        grad = parameter.grad.float().numpy()
        np.testing.assert_allclose(
            found[f"{name}_grad"].astype(np.float32), grad, rtol=0.02, atol=0.01 * abs(grad).max()
        )


def eager(module: Any, optimizer: Any, batches: Any) -> list[float]:
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = module(*batch)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("name", ["gpt2", "lstm_both_ways", "unet"])
def test_a_dynamic_batch_may_have_any_size(name: str) -> None:
    module, batch = net(name)
    capture = captured(memplan.TorchStep(module, None, batch, dynamic="batch"))
    shape = capture.model.graph.input[-1].type.tensor_type.shape
    assert shape.dim[0].dim_param == "batch"
    larger = tuple(torch.cat([t, t.flip(0), t[:1]]) for t in batch)
    assert gradient_error(capture, module, larger, lambda: module(*larger)) <= 1e-4


class Picked(torch.nn.Module):
    """A table that is read twice: by rows, and by rows and columns, counted from the end, too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(4, 3)

    def forward(self, rows: Any, columns: Any) -> Any:
        pairs = self.table.weight[rows, columns]
        return (self.table(rows) ** 2).sum() + (pairs**3).sum() + self.table.weight[rows].sum()


def test_rows_that_are_read_twice_are_added_by_an_operator_that_loses_nothing() -> None:
    """ScatterND that adds does, on the CPU, where several threads run."""
    torch.manual_seed(0)
    module = Picked().double()
    batch = torch.tensor([[0, 1, 1], [3, 0, 1]]), torch.tensor([[2, -1, 2], [0, 1, -1]])
    capture = captured(memplan.TorchStep(module, None, batch))
    assert "ScatterND" not in {node.op_type for node in capture.model.graph.node}
    assert gradient_error(capture, module, batch, lambda: module(*batch)) <= TOLERANCE


def test_float16_under_autocast() -> None:
    net = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
    )

    def loss(model: Any, x: Any, labels: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(x)
        return torch.nn.functional.cross_entropy(logits.float(), labels)

    torch.manual_seed(0)
    batch = torch.randn(4, 8), torch.randint(0, 4, (4,))
    capture = captured(memplan.TorchStep(net, loss, batch))
    kinds = {tensor.type.tensor_type.elem_type for tensor in capture.model.graph.value_info}
    assert 10 in kinds  # float16
    assert gradient_error(capture, net, batch, lambda: loss(net, *batch)) <= 0.01


def test_a_rewritten_capture_trains_like_pytorch(tmp_path: Path) -> None:
    module, batch = net("gpt2")
    batches = [tuple((t + k) % 13 for t in batch) for k in range(20)]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    step = tmp_path / "step.onnx"
    capture = captured(memplan.TorchStep(module, None, batch, optimizer), output=step)
    plan = memplan.rewrite(step, memplan.RewriteOptions(budget="92%", strategy="greedy"))
    capture.model.CopyFrom(plan.model)
    losses, _ = trained(capture, batches)
    np.testing.assert_allclose(losses, eager(module, optimizer, batches), rtol=1e-5)
