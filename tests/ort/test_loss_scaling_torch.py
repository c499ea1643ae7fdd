"""Captured steps against ``torch.amp.GradScaler``, with ``torch.nn.utils``'s clipping.

ONNX Runtime's CPU provider computes float16 in float32 and leaves out casts between, so that it
overflows where PyTorch does only if the graph says so; ONNX's own evaluator rounds every result.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import memplan
from helpers.float64_ops import OPS
from helpers.torch_steps import captured, net, outputs_of
from helpers.with_torch import functional, nn, torch

STEPS = 20


class Cnn(nn.Module):  # type: ignore[name-defined,misc]
    """Two convolutions and a normalization in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=2)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(72, 4)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norm(self.first(x)))
        return self.head(torch.relu(self.second(x)).flatten(1))


class Gpt(nn.Module):  # type: ignore[name-defined,misc]
    """An embedding, a layer of attention, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, "gelu", batch_first=True)

    def forward(self, tokens: Any) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.layer(self.tokens(tokens), src_mask=mask)).flatten(0, 1)


def mlp() -> Any:
    return nn.Sequential(
        nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)
    )


def batches(kind: Callable[[], Any], draw: Any) -> list[tuple[Any, Any]]:
    labels = torch.randint(0, 4, (STEPS, 8), generator=draw)
    if kind is Gpt:
        tokens = torch.randint(0, 32, (STEPS, 2, 4, 8), generator=draw)
        return [(first, second) for first, second in tokens]
    shape = (STEPS, 8, 16) if kind is mlp else (STEPS, 8, 3, 8, 8)
    return list(zip(torch.randn(shape, generator=draw), labels, strict=True))


def by_reference(capture: memplan.Capture) -> Callable[[dict[str, Any]], tuple[float, bool, float]]:
    """A step that is evaluated result by result; loss, whether it was skipped, the next scale."""
    graph = capture.model.graph
    evaluator = ReferenceEvaluator(capture.model, new_ops=OPS)
    known = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    state = {
        value.name: known.get(
            value.name,
            np.zeros([dim.dim_value for dim in value.type.tensor_type.shape.dim], np.float32),
        )
        for value in graph.input
        if value.name not in capture.batch
    }
    names = [value.name for value in graph.output]

    def step(feeds: dict[str, Any]) -> tuple[float, bool, float]:
        with np.errstate(all="ignore"):
            found = dict(zip(names, evaluator.run(names, {**state, **feeds}), strict=True))
        state.update({old: found[new] for new, old in capture.contract.new_values.items()})
        return float(found["loss"]), bool(found["found_inf"]), float(state["loss_scale"])

    return step


def by_runtime(capture: memplan.Capture) -> Callable[[dict[str, Any]], tuple[float, bool, float]]:
    trainer = memplan.Trainer(capture.model, threads=1)

    def step(feeds: dict[str, Any]) -> tuple[float, bool, float]:
        loss = trainer.step(feeds)
        return loss, trainer.skipped, float(trainer.state_dict()["loss_scale"])

    return step


@pytest.mark.parametrize(
    ("kind", "half", "runs", "clip", "tolerance"),
    [
        (mlp, True, by_reference, 1.0, 1e-3),
        (Cnn, False, by_runtime, None, 1e-4),
        (Gpt, True, by_reference, 1.0, 1e-3),
        (mlp, False, by_runtime, None, 1e-5),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_skips_the_steps_that_grad_scaler_skips(
    kind: Callable[[], Any], half: bool, runs: Any, clip: float | None, tolerance: float
) -> None:
    """20 steps, the first of which overflow: the same scales in all, and the same losses."""
    torch.manual_seed(0)
    module = kind()
    # No gradient of these comes close to the end of float16, where the order of a sum decides.
    data = batches(kind, torch.Generator().manual_seed(3))
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    # In float32 the loss is made large, so that its gradients overflow, too.
    factor, begin = (1.0, 2.0**24) if half else (1e2, 2.0**127)
    scaler = torch.amp.GradScaler("cpu", init_scale=begin, growth_interval=4)

    def loss(model: Any, x: Any, labels: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.float16, enabled=half):
            return functional.cross_entropy(model(x), labels.flatten()) * factor

    step = memplan.TorchStep(module, loss, data[0], optimizer, scaler=scaler, clip_norm=clip)
    capture = captured(step)
    own = runs(capture)
    told = []
    for batch in data:
        before = scaler.get_scale()
        optimizer.zero_grad()
        value = loss(module, *batch)
        scaler.scale(value).backward()
        scaler.unscale_(optimizer)
        if clip:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        found = own(dict(zip(capture.batch, (t.numpy() for t in batch), strict=True)))
        told.append(found[1])
        assert found[1:] == (scaler.get_scale() < before, scaler.get_scale()), len(told)
        assert found[0] == pytest.approx(float(value.detach()), rel=tolerance), len(told)
    assert told[0]
    assert told.count(False) > STEPS / 2


@pytest.mark.parametrize("how", ["clip_norm", "clip_value"])
def test_clips_as_pytorch_does_in_float64(how: str) -> None:
    """And unscales before that, from the scale that the scaler has come to."""
    module, batch = net("gru", wide=True)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1000.0, backoff_factor=0.7)
    scaler.scale(torch.ones(()))  # the state is made when it is first used
    module(*batch).backward()
    grads = torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])
    bound = float(grads.norm()) / 3 if how == "clip_norm" else float(grads.abs().quantile(0.5))
    step = memplan.TorchStep(module, None, batch, optimizer, scaler=scaler, **{how: bound})
    capture = captured(step)
    assert capture.as_json()[how] == bound
    feeds = {name: t.numpy() for name, t in zip(capture.batch, batch, strict=True)}
    found = outputs_of(capture.model, feeds)
    assert not found["found_inf"]
    clip = {"clip_norm": nn.utils.clip_grad_norm_, "clip_value": nn.utils.clip_grad_value_}[how]
    clip(module.parameters(), bound)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    largest = max(float(p.grad.abs().max()) for p in module.parameters() if p.grad is not None)
    for name in capture.trained:
        wanted = dict(module.named_parameters())[name].grad
        change = before[name].numpy() - found[f"{name}_new"]
        np.testing.assert_allclose(change, wanted.numpy(), rtol=1e-6, atol=1e-6 * largest)
