"""Gradients where a derivative does not exist, two inputs tie, or a function saturates, against
PyTorch's autograd. By ONNX's operators, and without PyTorch: ``unit/autodiff/rules/test_ties.py``.
"""

import numpy as np
import pytest

import memplan
from helpers.gradients import runtime
from helpers.ties import CASES, AtTies
from helpers.torch_steps import captured
from helpers.with_torch import torch


def test_what_is_captured_has_the_ties_of_the_installed_pytorch() -> None:
    """Every function of ``helpers/ties.py`` in one step, against its own backward."""
    module, one = AtTies(CASES), torch.ones(())
    capture = captured(memplan.TorchStep(module, None, (one,)), weights="embed")
    found = runtime(capture.model, {"one": one.numpy()})
    module(one).backward()
    differ = [
        f"{name}: {grad.tolist()}, PyTorch has {parameter.grad.tolist()}"
        for name, parameter in module.named_parameters()
        if not np.allclose(grad := found[f"{name}_grad"], parameter.grad, rtol=1e-4, atol=1e-6)
    ]
    assert not differ, "\n".join(differ)


@pytest.mark.parametrize("whole", [0.0, 0.5, 1.0])
def test_forms_have_the_share_that_they_are_asked_for(whole: float) -> None:
    """Whatever PyTorch is installed: what a version gives decides, not its number."""
    from memplan.pytorch.ties import Shares, tie_table

    table = tie_table(Shares(whole, whole, whole))
    aten = torch.ops.aten
    x = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
    assert (aten.clamp_min.default in table) == (whole > 0)
    forms = {aten.fmax.default: torch.ones(3), aten.clamp_min.Tensor: torch.ones(3)}
    if whole == 1:
        forms[aten.clamp_min.default] = 1.0
    for operator, bound in forms.items():
        y = table[operator](x, bound)
        assert y.tolist() == [1, 1, 2]
        if whole:
            (grad,) = torch.autograd.grad(y.sum(), x)
            assert grad.tolist() == [0, whole, 1]
