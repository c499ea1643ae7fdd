"""What changes gradients and stands in no forward graph is noted, with its name and line."""

from __future__ import annotations

from typing import Any

import pytest

from memplan.errors import ModelError

torch: Any = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from memplan.pytorch.custom_backward import (  # noqa: E402
    noted,
    require_plain,
    require_traceable,
)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return 2 * grad


def halved(grad: Any) -> Any:
    return grad / 2


def kinds(model: Any, run: Any) -> list[str]:
    with noted(model) as found:
        run(model, torch.randn(3, 4))
    assert all("test_custom_backward.py:" in str(each) for each in found)
    return [f"{each.kind} {each.name}" for each in found]


def test_nothing_is_noted_of_a_plain_step() -> None:
    def run(model: Any, x: Any) -> None:
        model(x).sum().backward()

    assert kinds(nn.Linear(4, 2), run) == []


def test_functions_and_hooks_are_noted_once_per_line() -> None:
    def run(model: Any, x: Any) -> None:
        for _ in range(2):
            h = Doubled.apply(model(x))
        h.register_hook(halved)
        h.sum().backward()

    found = kinds(nn.Linear(4, 2), run)
    assert found == ["autograd.Function Doubled", "tensor hook halved"]


def test_what_needs_no_gradient_has_no_backward() -> None:
    def run(model: Any, x: Any) -> None:
        Doubled.apply(x)
        with torch.no_grad():
            Doubled.apply(model(x))

    assert kinds(nn.Linear(4, 2), run) == []


def test_saved_tensors_that_are_changed() -> None:
    def run(model: Any, x: Any) -> None:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, halved):
            model(x).square().sum().backward()
        with torch.autograd.graph.save_on_cpu():
            model(x).square().sum().backward()

    assert kinds(nn.Linear(4, 2), run) == ["saved-tensor hook halved"]


def test_hooks_that_are_there_before() -> None:
    model = nn.Sequential(nn.Linear(4, 2))
    model[0].register_full_backward_hook(lambda _m, given, _o: given)
    model[0].weight.register_hook(halved)
    model[0].bias.register_post_accumulate_grad_hook(lambda p: None)
    assert kinds(model, lambda _model, _x: None) == [
        "module hook <lambda> on 0",
        "parameter hook halved on 0.weight",
        "post-accumulate-grad hook <lambda> on 0.bias",
    ]


def test_pytorch_is_left_as_it_was() -> None:
    before = (torch.autograd.Function.apply, torch.Tensor.register_hook)
    with pytest.raises(ZeroDivisionError), noted(nn.Linear(1, 1)):
        raise ZeroDivisionError
    assert (torch.autograd.Function.apply, torch.Tensor.register_hook) == before


def test_which_road_is_closed() -> None:
    def run(model: Any, x: Any) -> None:
        model(x).register_hook(halved)

    with noted(nn.Linear(4, 2)) as found:
        run(nn.Linear(4, 2), torch.randn(3, 4))
    require_traceable(tuple(found))
    with pytest.raises(ModelError, match="tensor hook 'halved'") as refusal:
        require_plain(tuple(found))
    assert "--via joint" in refusal.value.hint
    require_plain(())
