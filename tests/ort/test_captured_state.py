"""What a step writes beside its gradients: buffers, weights that are not trained, its batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import memplan
from memplan.errors import ModelError

torch: Any = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
from torch import nn  # noqa: E402

from helpers.torch_steps import captured, outputs_of  # noqa: E402

pytestmark = pytest.mark.ort


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)
        self.register_buffer("mean", torch.ones(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Any) -> Any:
        return self.student(x)


def statistics(net: Any, x: Any) -> Any:
    """The mean is written in place, read where a gradient is taken, and then assigned."""
    net.mean.mul_(0.5)
    h = net.student(x) * net.mean
    net.mean = 0.9 * net.mean + 0.1 * h.detach().mean(0)
    net.count = net.count + 1
    return (h * net.mean).square().mean()


def distilled(net: Any, x: Any) -> Any:
    with torch.no_grad():
        net.teacher.weight.mul_(0.9).add_(net.student.weight, alpha=0.1)
    return (net.student(x) - net.teacher(x)).square().mean()


def written_over(net: Any, x: Any) -> Any:
    return net.student(x.mul_(2)).square().mean()


def through_cond(net: Any, x: Any) -> Any:
    return torch.cond(x.sum() > 0, net.student, net.teacher, (x,)).square().mean()


def compare(step: Any) -> memplan.Capture:
    """Everything that a step leaves, against PyTorch."""
    torch.manual_seed(0)
    net, x = Net(), torch.randn(5, 4)
    capture = captured(memplan.TorchStep(net, step, {"x": x.clone()}))
    found = outputs_of(capture.model, {"x": x.numpy()})
    before = {name: value.clone() for name, value in net.state_dict().items()}
    loss = step(net, x.clone())
    loss.backward()
    wanted = {f"{n}_grad": p.grad for n, p in net.named_parameters() if p.grad is not None}
    after = net.state_dict().items()
    wanted |= {f"{n}_new": new for n, new in after if not torch.equal(new, before[n])}
    assert set(found) == {"loss", *wanted}
    np.testing.assert_allclose(found["loss"], loss.detach(), rtol=1e-5)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    return capture


def test_a_buffer_that_is_assigned_anew_is_renewed() -> None:
    new_values = compare(statistics).contract.new_values
    assert new_values == {"mean_new": "mean", "count_new": "count"}


def test_a_teacher_that_the_step_writes_is_renewed() -> None:
    capture = compare(distilled)
    assert capture.contract.new_values == {"teacher.weight_new": "teacher.weight"}
    assert capture.frozen == ("teacher.bias",)


def test_a_batch_that_is_written_over_is_not_handed_out() -> None:
    compare(written_over)


def test_modules_in_a_branch_of_torch_cond() -> None:
    compare(through_cond)


def test_what_nothing_is_trained_by_is_refused_in_the_same_words() -> None:
    def detached(net: Any, x: Any) -> Any:
        return net.student(x).detach().square().mean()

    with pytest.raises(ModelError, match="no parameter that requires a gradient leads to the loss"):
        captured(memplan.TorchStep(Net(), detached, {"x": torch.randn(5, 4)}))


def test_nodes_without_gradients_tell_their_modules() -> None:
    def step(net: Any, x: Any) -> Any:
        with torch.no_grad():
            wanted = net.teacher(x)
        return (net.student(x) - wanted).square().mean()

    told = {
        item.value
        for node in compare(step).model.graph.node
        for item in node.metadata_props
        if item.key == "memplan.module"
    }
    assert {"student", "teacher"} <= told
