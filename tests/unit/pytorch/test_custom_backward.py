"""What changes gradients is recorded while a step is traced, or noted with its name and line."""

from __future__ import annotations

from typing import Any

import pytest

from memplan.errors import ModelError

torch: Any = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
from torch import nn  # noqa: E402

from memplan.pytorch.custom_backward import Recorder, recording  # noqa: E402


def halved(grad: Any) -> Any:
    return grad / 2


def refused(model: Any, run: Any) -> list[str]:
    recorder = Recorder(model)
    with recording(recorder):
        run(model, torch.randn(3, 4))
    assert all("test_custom_backward.py:" in str(each) for each in recorder.refused)
    return [f"{each.kind} {each.name}" for each in recorder.refused]


def test_saved_tensors_that_are_changed() -> None:
    def run(model: Any, x: Any) -> None:
        for _ in range(2):
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, halved):
                model(x).square().sum().backward()
        with torch.autograd.graph.save_on_cpu():
            model(x).square().sum().backward()

    assert refused(nn.Linear(4, 2), run) == ["saved-tensor hook halved"]


def test_hooks_that_are_there_before() -> None:
    model = nn.Sequential(nn.Linear(4, 2))
    model[0].register_full_backward_hook(lambda _m, given, _o: given)
    model[0].bias.register_post_accumulate_grad_hook(lambda p: None)
    model[0].weight.register_hook(halved)
    assert refused(model, lambda _model, _x: None) == [
        "module hook <lambda> on 0",
        "post-accumulate-grad hook <lambda> on 0.bias",
    ]
    recorder = Recorder(model)
    with pytest.raises(ModelError, match=r"on 0' .* and 1 more"):
        recorder.require_recorded()
    ((name, (what, hooks)),) = recorder.brought.items()
    assert (name, hooks) == ("0.weight", [halved])
    assert str(what).startswith("parameter hook 'halved on 0.weight' (")


def test_pytorch_is_left_as_it_was() -> None:
    before = (torch.autograd.Function.apply, torch.Tensor.register_hook)
    with pytest.raises(ZeroDivisionError), recording(Recorder(nn.Linear(1, 1))):
        raise ZeroDivisionError
    assert (torch.autograd.Function.apply, torch.Tensor.register_hook) == before
