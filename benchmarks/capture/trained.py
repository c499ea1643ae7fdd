"""200 steps of a small GPT and a small CNN: PyTorch beside the captured graph, rewritten at 50%."""

from __future__ import annotations

import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import memplan
from benchmarks.nets.captured import Classified, Gpt2
from benchmarks.nets.families import conv_norm
from memplan.ir.roles import Role

STEPS = 200


def network(name: str) -> tuple[nn.Module, list[tuple[Tensor, ...]], Any]:
    """A network, its batches, and its optimizer. What is to be learned can be learned."""
    torch.manual_seed(0)
    if name == "gpt":
        module: nn.Module = Gpt2(vocabulary=32, width=48, depth=4)
        start = torch.randint(0, 32, (STEPS, 64, 1))
        walk = (start + 5 * torch.arange(17)) % 32
        batches: list[tuple[Tensor, ...]] = [
            (w[:, :-1].contiguous(), w[:, 1:].contiguous()) for w in walk
        ]
        return module, batches, torch.optim.AdamW(module.parameters(), lr=1e-3)
    layers: list[nn.Module] = [*conv_norm(3, 16, 3, 2), nn.GELU()]
    for _ in range(12):
        layers += [*conv_norm(16, 16, 3), nn.GELU()]
    module = Classified(nn.Sequential(*layers), 16)
    labels = torch.randint(0, 5, (STEPS, 16))
    marks = torch.randn(5, 3, 1, 1)
    batches = [(marks[each] + torch.randn(16, 3, 24, 24), each) for each in labels]
    return module, batches, torch.optim.SGD(module.parameters(), lr=0.003, momentum=0.9)


def curves(name: str, road: str) -> dict[str, object]:
    """Losses of PyTorch and of the rewritten capture, how far they are apart, and two yardsticks:
    how far both are from PyTorch's in float64, and how far PyTorch's own are apart when its first
    weights are rounded differently."""
    torch.set_num_threads(1)
    module, batches, optimizer = network(name)
    twin, wide = copy.deepcopy(module), copy.deepcopy(module).double()
    with TemporaryDirectory() as folder:
        step, fits = Path(folder) / "step.onnx", Path(folder) / "fits.onnx"
        captured = memplan.capture(
            memplan.TorchStep(module, None, batches[0], optimizer), step, via=road
        )
        plan = memplan.rewrite(step, "50%", fits)
        ours = _trained(captured, fits, batches)
    theirs = _eager(module, batches, optimizer)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(1 + 2.0**-23)
    shifted = _eager(twin, batches, type(optimizer)(twin.parameters(), **_settings(optimizer)))
    exact = _eager(
        wide,
        [tuple(t.double() if t.is_floating_point() else t for t in each) for each in batches],
        type(optimizer)(wide.parameters(), **_settings(optimizer)),
    )
    return {
        "steps": STEPS,
        "peak_before_bytes": plan.original.timeline.peak_bytes,
        "peak_after_bytes": plan.timeline.peak_bytes,
        "first_loss": theirs[0],
        "last_loss": theirs[-1],
        "largest_difference": _apart(ours, theirs),
        "noise": _apart(shifted, theirs),
        "from_float64": _apart(ours, exact),
        "from_float64_pytorch": _apart(theirs, exact),
        "losses": [round(value, 7) for value in ours[::10]],
        "losses_of_pytorch": [round(value, 7) for value in theirs[::10]],
    }


def _settings(optimizer: Any) -> dict[str, Any]:
    names = ("lr", "momentum") if isinstance(optimizer, torch.optim.SGD) else ("lr",)
    return {name: optimizer.param_groups[0][name] for name in names}


def _apart(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(one, other, strict=True))


def _eager(module: nn.Module, batches: Any, optimizer: Any) -> list[float]:
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = module(*batch)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def _trained(captured: memplan.Capture, path: Path, batches: Any) -> list[float]:
    """The loop that a user would write without a trainer: new values are fed back."""
    import onnxruntime

    settings = memplan.session_options(path)
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    outputs = [value.name for value in session.get_outputs()]
    contract = captured.contract
    states = set(contract.named(Role.OPTIMIZER_STATE))
    state = {
        value.name: np.zeros(value.shape, np.float32)
        for value in session.get_inputs()
        if value.name in states
    }
    losses = []
    for batch in batches:
        feeds = {n: t.numpy() for n, t in zip(captured.batch, batch, strict=True)}
        found = dict(zip(outputs, session.run(outputs, {**state, **feeds}), strict=True))
        losses.append(float(found["loss"]))
        state = {old: found[new] for new, old in contract.new_values.items()}
    return losses
