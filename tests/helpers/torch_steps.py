"""Training steps of PyTorch that tests capture, and a loop that trains a captured file."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

import memplan
from helpers.captured_nets import FAMILIES, NETS
from helpers.gradients import reference, runtime
from helpers.with_torch import Tensor, nn, torch
from memplan.ir.roles import Role

NOISE = {torch.float64: 1e-9, torch.float32: 1e-2}
"""Of the largest gradient of all, by element type: what is zero but for rounding is compared with
that."""


class Reversed(torch.autograd.Function):
    """Gradient reversal."""

    @staticmethod
    def forward(ctx: Any, x: Any, factor: float) -> Any:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return -ctx.factor * grad, None


def net(name: str, *, wide: bool = False) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A network of ``captured_nets`` whose parameters are all of some size."""
    made = (FAMILIES | NETS)[name]
    torch.manual_seed(0)
    module, batch = made.make(), made.batch()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    if wide:
        module = module.double()
        batch = tuple(t.double() if t.is_floating_point() else t for t in batch)
    return module, batch


def captured(step: memplan.TorchStep, **settings: Any) -> memplan.Capture:
    """A capture without PyTorch's warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return memplan.capture(step, **settings)


def outputs_of(model: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    """All outputs by ONNX Runtime, or by ONNX's evaluator where that has no float64 kernel."""
    try:
        return runtime(model, feeds)
    except Exception:
        return reference(model, feeds)


def gradient_error(
    capture: memplan.Capture,
    module: nn.Module,
    batch: Sequence[Tensor],
    loss: Callable[[], Tensor],
) -> float:
    """The largest error of the loss and of all gradients, relative to the largest entry of each."""
    return max(errors_by_name(capture, module, batch, loss).values())


def errors_by_name(
    capture: memplan.Capture,
    module: nn.Module,
    batch: Sequence[Tensor],
    loss: Callable[[], Any],
    part: Callable[[str], str] = lambda name: "",
) -> dict[str, float]:
    """The error of the loss, of metrics beside it and of each gradient, by name.

    ``part``: of the name of a parameter, the part of the module that has gradients of one size.
    """
    feeds = {name: t.numpy() for name, t in zip(capture.batch, batch, strict=True)}
    found = outputs_of(capture.model, feeds)
    returned = loss()
    value, metrics = returned if isinstance(returned, tuple) else (returned, {})
    value.backward()
    grads = {n: p.grad.numpy() for n, p in module.named_parameters() if p.grad is not None}
    assert set(capture.trained) == set(grads)
    noise = NOISE[next(module.parameters()).dtype]
    largest: dict[str, float] = {}
    for name, grad in grads.items():
        largest[part(name)] = max(float(np.abs(grad).max()), largest.get(part(name), 0.0))
    errors = {
        name: abs(float(found[name]) - float(said.detach())) / abs(float(said.detach()))
        for name, said in {"loss": value, **metrics}.items()
    }
    for name, grad in grads.items():
        own = max(float(np.abs(grad).max()), noise * largest[part(name)])
        errors[name] = float(np.abs(found[f"{name}_grad"] - grad).max()) / own
    return errors


def trained(
    capture: memplan.Capture, batches: Sequence[Sequence[Tensor]]
) -> tuple[list[float], dict[str, Any]]:
    """Losses of a training that feeds new values back, and the last state."""
    from helpers.sessions import session

    opened = session(capture.model, threads=0)
    names = [value.name for value in opened.get_outputs()]
    states = set(capture.contract.named(Role.OPTIMIZER_STATE))
    state: dict[str, Any] = {
        value.name: np.zeros(value.shape, np.float32)
        for value in opened.get_inputs()
        if value.name in states
    }
    losses = []
    for batch in batches:
        feeds = {name: t.numpy() for name, t in zip(capture.batch, batch, strict=True)}
        found = dict(zip(names, opened.run(names, {**state, **feeds}), strict=True))
        losses.append(float(found["loss"]))
        state = {old: found[new] for new, old in capture.contract.new_values.items()}
    return losses, state
