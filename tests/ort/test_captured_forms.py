"""Operators that are written in others on their way to ONNX, against eager PyTorch: with and
without ONNX Runtime's own fusions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest

import memplan
from helpers.torch_steps import captured
from helpers.with_torch import F, nn, torch
from memplan.errors import ModelError

LEVELS = (
    onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
)
TOKENS = torch.tensor([[0, 1, 1], [1, 2, 5]])
GROUPS = torch.tensor([[0] * 5, [1] * 5, [0] * 5, [2] * 5])
PLACES = torch.linspace(-1.4, 1.4, 2 * 4 * 4 * 2).reshape(2, 4, 4, 2).sin() * 1.3
IMAGE = torch.arange(180.0).reshape(2, 3, 5, 6).sin()

JOINT = 5
"""So many make one step, each with a weight of its own."""
Rows = tuple[Callable[[Any], Any], ...]
ROWS: dict[str, tuple[tuple[int, ...], Rows]] = {
    "ties": (
        (4, 5),
        (
            lambda t: F.relu6(t * 0) + F.relu6(t * 0 + 6) + F.relu6(4 * t),
            lambda t: F.hardtanh(t * 0 - 1) + F.hardtanh(t * 0 + 1) + F.hardtanh(t),
            lambda t: (t * 0).clamp(0, 6) + (t * 0 + 6).clamp(0, 6) + t.clamp(0, 0.5),
            lambda t: torch.maximum(t * 0, t * 0) + (t * 0).max(1, keepdim=True).values,
        ),
    ),
    "vectors": (
        (5, 5),
        (
            lambda t: t @ t[0],
            lambda t: t.T @ t[:, 0],
            lambda t: t[0] @ t[1] + torch.dot(t[0], t[1]) + torch.vdot(t[0], t[1]),
            lambda t: torch.addmv(t[:, 0], t, t[1]),
            lambda t: t @ (t @ t[0]),
            lambda t: torch.stack([t, t + 1]) @ t[0],
            lambda t: (t.T @ t[0]).tanh() @ t,
        ),
    ),
    "order": (
        (4, 6),
        (
            lambda t: t.median(1).values + t.median(),
            lambda t: t.median(1, keepdim=True).values + t.quantile(0.3, 1, keepdim=True),
        ),
    ),
    "products": (
        (4, 5),
        (
            lambda t: t.prod(1) + (t * torch.tensor([1.0, 0, 1, 0, 1])).prod(1),
            lambda t: (t * torch.tensor([1.0, 0, 1, 1, 1])).prod(1) + t.prod(),
            lambda t: t.cumprod(1) + t.logcumsumexp(1),
        ),
    ),
    "masks": (
        (4, 5),
        (
            lambda t: t.masked_select(t > 0).square().sum(),
            lambda t: t.masked_scatter(t > 0, t.flip(0) * 2),
            lambda t: t.select_scatter(t[0] * 2, 0, 1),
            lambda t: torch.diag(t[:, :4]) + t.diagonal(1),
        ),
    ),
    "distances": (
        (4, 5),
        (
            *(
                lambda t, p=p: torch.cdist(t, t.flip(1) + 0.1, p=p) + torch.cdist(t, t, p=p)
                for p in (1.0, 2.0, 3.0)
            ),
            lambda t: torch.cdist(t, t.flip(1) + 0.1, p=float("inf")),
        ),
    ),
    "scattered": (
        (4, 5),
        (
            lambda t: torch.zeros(3, 5).scatter_reduce(0, GROUPS, t, "mean"),
            lambda t: torch.ones(3, 5).scatter_reduce(0, GROUPS, t, "mean", include_self=False),
            lambda t: torch.ones(3, 5).scatter_reduce(0, GROUPS, t, "sum", include_self=False),
            lambda t: t.unfold(1, 3, 1),
        ),
    ),
    "embedded": (
        (6, 4),
        (
            lambda t: F.embedding(TOKENS, t, scale_grad_by_freq=True),
            lambda t: F.embedding(TOKENS, t, padding_idx=1, scale_grad_by_freq=True),
        ),
    ),
    "padded": (
        (2, 3, 4, 5, 3),
        tuple(
            lambda t, d=d, mode=mode: F.pad(t[(0,) * (3 - d)], [1, 2] * d, mode=mode)
            for d in (1, 2, 3)
            for mode in ("replicate", "reflect", "circular")
        ),
    ),
    "largest": (
        (2, 3, 7, 8, 5),
        (
            lambda t: F.max_pool3d(t, 3, 2, 1),
            lambda t: F.max_pool3d(t, 2, 2, ceil_mode=True),
            lambda t: F.adaptive_max_pool3d(t, 3),
            lambda t: F.adaptive_max_pool2d(t[0], 3),
            lambda t: F.adaptive_max_pool1d(t[0, 0], 3) + F.adaptive_max_pool1d(t[0, 0], 2).sum(),
            lambda t: F.max_pool1d(t[0, 0], 2),
        ),
    ),
    "averages": (
        (2, 3, 7, 8, 5),
        (
            lambda t: F.avg_pool3d(t, 3, 2, 1),
            lambda t: F.avg_pool3d(t, 3, 2, 1, count_include_pad=False),
            lambda t: F.avg_pool3d(t, 2, 2, ceil_mode=True, count_include_pad=False),
            lambda t: F.adaptive_avg_pool3d(t, 3) + F.adaptive_avg_pool3d(t, 1),
            lambda t: F.adaptive_avg_pool3d(t, (7, 4, 5)),
            lambda t: F.local_response_norm(t, 3),
        ),
    ),
    "resized": (
        (1, 2, 5, 4, 3),
        (
            lambda t: F.interpolate(t, size=[7, 9, 4]),
            lambda t: F.interpolate(t, scale_factor=1.6, mode="trilinear"),
            lambda t: F.interpolate(t[0], size=[7, 9], mode="bicubic", align_corners=True),
            lambda t: F.interpolate(t[0], scale_factor=1.6, mode="nearest-exact"),
            lambda t: F.interpolate(t[0, 0], scale_factor=1.7, mode="linear"),
        ),
    ),
    "sampled": (
        (2, 3, 5, 6),
        tuple(
            lambda t, mode=mode, pad=pad: F.grid_sample(
                t, PLACES, mode=mode, padding_mode=pad, align_corners=pad == "border"
            )
            for mode in ("bilinear", "nearest")
            for pad in ("zeros", "border", "reflection")
        ),
    ),
    "places": (
        (2, 4, 4, 2),
        tuple(
            lambda t, pad=pad: F.grid_sample(
                IMAGE, 1.7 * t, padding_mode=pad, align_corners=pad == "border"
            )
            for pad in ("zeros", "border")
        ),
    ),
    "affine": ((2, 2, 3), (lambda t: F.affine_grid(t, [2, 3, 4, 5], align_corners=False),)),
}


class Held(nn.Module):
    def __init__(self, shape: tuple[int, ...], kind: Any = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(shape).to(kind))


def total(rows: Rows) -> Any:
    def step(net: Any, x: Any) -> Any:
        found = [row(net.weight) for row in rows]
        shares = [torch.arange(float(each.numel())).sin().reshape(each.shape) for each in found]
        parts = [(each * share).sum() for each, share in zip(found, shares, strict=True)]
        return torch.stack(parts).sum() + 0 * x.sum()

    return step


def errors(module: Any, step: Any, x: Any) -> dict[str, float]:
    """The largest error of each metric and gradient, relative, without and with fusions."""
    capture = captured(memplan.TorchStep(module, step, {"x": x}))
    loss, metrics = step(module, x)
    loss.backward()
    wanted = {f"{name}_grad": p.grad.float().numpy() for name, p in module.named_parameters()}
    wanted |= {name: value.detach().float().numpy() for name, value in metrics.items()}
    found = dict.fromkeys(wanted, 0.0)
    for level in LEVELS:
        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.graph_optimization_level = 4, level
        session = onnxruntime.InferenceSession(
            capture.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        feeds = {each.name: x.numpy() for each in session.get_inputs()}
        outputs = session.run(list(wanted), feeds)
        for (name, value), own in zip(wanted.items(), outputs, strict=True):
            error = np.abs(own.astype(np.float32) - value).max() / max(1e-2, np.abs(value).max())
            found[name] = max(found[name], float(error))
    return found


@pytest.mark.parametrize("first", range(0, len(ROWS), JOINT))
def test_gradients_are_those_of_eager_pytorch(first: int) -> None:
    rows = dict([*ROWS.items()][first : first + JOINT])

    def step(net: Any, x: Any) -> Any:
        parts = {name: total(row)(net[name], x) for name, (_, row) in rows.items()}
        return torch.stack([*parts.values()]).sum(), parts

    module = nn.ModuleDict({name: Held(shape) for name, (shape, _) in rows.items()})
    found = errors(module, step, torch.ones(2))
    assert {name: error for name, error in found.items() if error > 1e-4} == {}


@pytest.mark.parametrize(
    ("shape", "row"),
    [
        ((2, 3, 8, 8), lambda t: F.max_pool2d(t, 3, 2, 1)),
        ((6, 4), lambda t: F.embedding(TOKENS, t)),
        ((4, 5), lambda t: t.gather(1, torch.tensor([[0, 1, 1]] * 4))),
    ],
)
def test_sums_at_indices_in_float16_run_on_the_cpu(shape: tuple[int, ...], row: Any) -> None:
    def step(net: Any, x: Any) -> Any:
        loss = row(net.weight).float().square().mean() + 0 * x.sum()
        return loss, {"same": loss}

    assert max(errors(Held(shape, torch.float16), step, torch.ones(2)).values()) <= 2e-3


def test_normalized_weights() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 3), dim=1),
    )

    def step(net: Any, x: Any) -> Any:
        loss = net(x).square().mean()
        return loss, {"same": loss}

    assert max(errors(module, step, torch.randn(6, 5)).values()) <= 1e-4


def test_recurrent_layers() -> None:
    def step(net: Any, x: Any) -> Any:
        loss = net(x)[0].square().mean()
        return loss, {"same": loss}

    assert max(errors(nn.GRU(5, 4, 2), step, torch.randn(3, 2, 5)).values()) <= 1e-4
    with pytest.raises(ModelError, match=r"LSTM with projections \(proj_size\)"):
        errors(nn.LSTM(5, 4, proj_size=2), step, torch.randn(3, 2, 5))


def test_losses_under_autocast_are_computed_in_float32() -> None:
    """ONNX has none of bfloat16."""

    def step(net: Any, x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(net(x), torch.arange(4), label_smoothing=0.1)

    found = memplan.TorchStep(nn.Linear(5, 4), step, {"x": torch.randn(4, 5)})
    assert captured(found, check=False).trained == ("weight", "bias")
