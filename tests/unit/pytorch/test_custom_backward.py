"""What changes gradients is recorded while a step is traced, or noted with its name and line."""

from typing import Any

import pytest

from helpers.with_torch import nn, torch
from memplan.errors import ModelError
from memplan.pytorch.custom_backward import Recorder, recording


def halved(grad: Any) -> Any:
    return grad / 2


def refusal(model: Any, run: Any) -> str:
    with pytest.raises(ModelError, match=r"test_custom_backward\.py:\d") as told:  # noqa: SIM117
        with recording(Recorder(model)):
            run(model, torch.randn(3, 4))
    return str(told.value.message)


def test_saved_tensors_that_are_changed() -> None:
    def run(model: Any, x: Any) -> None:
        with torch.autograd.graph.save_on_cpu():
            model(x).square().sum().backward()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, halved):
            model(x).square().sum().backward()

    assert "the saved-tensor hook 'halved'" in refusal(nn.Linear(4, 2), run)


def test_hooks_that_are_there_before() -> None:
    model = nn.Sequential(nn.Linear(4, 2))
    model[0].weight.register_hook(halved)
    ((name, (what, hooks)),) = Recorder(model).brought.items()
    assert (name, hooks) == ("0.weight", [halved])
    assert str(what).startswith("parameter hook 'halved on 0.weight' (")
    model[0].bias.register_post_accumulate_grad_hook(lambda p: None)
    told = refusal(model, lambda _model, _x: None)
    assert "the post-accumulate-grad hook '<lambda> on 0.bias'" in told
    model[0].register_full_backward_hook(lambda _m, given, _o: given)
    assert "the module hook '<lambda> on 0'" in refusal(model, lambda _model, _x: None)


def test_pytorch_is_left_as_it_was() -> None:
    before = (torch.autograd.Function.apply, torch.Tensor.register_hook)
    with pytest.raises(ZeroDivisionError), recording(Recorder(nn.Linear(1, 1))):
        raise ZeroDivisionError
    assert (torch.autograd.Function.apply, torch.Tensor.register_hook) == before
