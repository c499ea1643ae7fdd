"""A refusal names the operator, the module and the line of the user's code."""

from __future__ import annotations

from typing import Any

import pytest

import memplan
from memplan.errors import ModelError

torch: Any = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
from torch import nn  # noqa: E402


class Middle(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.mode(1).values


class Branching(nn.Module):
    def forward(self, x: Any) -> Any:
        return x if x.sum() > 0 else -x


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return 2 * grad


def inside(function: Any) -> str:
    """The line of a function's body of one line."""
    return f"test_errors.py:{function.__code__.co_firstlineno + 1})"


def refusal(model: Any, step: Any, via: str) -> ModelError:
    with pytest.raises(ModelError) as found:
        memplan.capture((model, step, {"x": torch.randn(3, 4)}, None), via=via)
    return found.value


def whole(net: Any, x: Any) -> Any:
    return net(x).square().mean()


@pytest.mark.parametrize("via", ["grad", "joint"])
def test_an_operator_without_a_form(via: str) -> None:
    said = refusal(nn.Sequential(nn.Linear(4, 4), Middle()), whole, via).message
    assert "aten.mode.default has no ONNX form" in said
    assert "module '1'" in said
    assert inside(Middle.forward) in said


@pytest.mark.parametrize("via", ["grad", "joint"])
def test_an_operator_in_the_loss_function(via: str) -> None:
    def step(net: Any, x: Any) -> Any:
        return net(x).mode(1).values.mean()

    said = refusal(nn.Linear(4, 4), step, via).message
    assert "aten.mode.default has no ONNX form" in said
    assert inside(step) in said


def test_an_operator_of_a_module_that_is_traced_live() -> None:
    def step(net: Any, x: Any) -> Any:
        return Twice.apply(net(x)).mean()

    said = refusal(nn.Sequential(nn.Linear(4, 4), Middle()), step, "joint").message
    assert "module '1'" in said
    assert inside(Middle.forward) in said


def test_a_branch_on_values() -> None:
    found = refusal(nn.Sequential(nn.Linear(4, 4), Branching()), whole, "grad")
    assert "module '1'" in found.message
    assert inside(Branching.forward) in found.message
    assert "torch.where" in found.hint


def test_a_normalization_over_all_batches() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None))
    found = refusal(model, whole, "grad")
    assert "module '1'" in found.message
    assert "momentum=None" in found.hint


def test_a_step_that_takes_a_gradient_by_itself() -> None:
    def step(net: Any, x: Any) -> Any:
        x = x.clone().requires_grad_(True)
        (grad,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        return grad.square().mean()

    found = refusal(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), step, "joint")
    assert "takes a gradient by itself" in found.message
    assert f"test_errors.py:{step.__code__.co_firstlineno + 2})" in found.message
    assert "gradient penalty" in found.hint
