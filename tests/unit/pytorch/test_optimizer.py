"""What is read of a torch.optim instance."""

from __future__ import annotations

from typing import Any

import pytest

from memplan.errors import UsageError

torch: Any = pytest.importorskip("torch")
from memplan.pytorch.optimizer import read_optimizer  # noqa: E402


def parameters() -> tuple[Any, Any, dict[int, str]]:
    first, second = (torch.nn.Parameter(torch.randn(3)) for _ in range(2))
    return first, second, {id(first): "a", id(second): "b"}


def test_groups_have_factors_of_the_first_rate() -> None:
    first, second, names = parameters()
    groups = [{"params": [first], "lr": 0.2}, {"params": [second], "lr": 0.05, "weight_decay": 0.5}]
    found = read_optimizer(torch.optim.AdamW(groups), names)
    assert (found.lr, found.groups["a"].factor, found.groups["b"].factor) == (0.2, 1.0, 0.25)
    assert dict(found.groups["b"].options)["weight_decay"] == 0.5
    assert {group.kind for group in found.groups.values()} == {"adamw"}


def test_state_and_step_of_an_optimizer_that_is_under_way() -> None:
    first, _, names = parameters()
    optimizer = torch.optim.Adam([first])
    for _ in range(3):
        first.grad = torch.ones(3)
        optimizer.step()
    found = read_optimizer(optimizer, names)
    assert found.step == 4
    assert sorted(found.state) == ["a.exp_avg", "a.exp_avg_sq"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: torch.optim.Rprop([p]), "Rprop cannot be captured"),
        (lambda p: torch.optim.Adam([p], amsgrad=True), "amsgrad=True"),
        (lambda p: torch.optim.SGD([p], maximize=True), "maximize=True"),
        (lambda p: torch.optim.RMSprop([p], centered=True), "centered=True"),
        (lambda p: torch.optim.SGD([torch.nn.Parameter(p.detach())]), "not a parameter of the"),
        (lambda p: 0.1, "the object float cannot be captured"),
    ],
)
def test_what_cannot_be_captured_is_named(make: Any, said: str) -> None:
    first, _, names = parameters()
    with pytest.raises(UsageError, match=said):
        read_optimizer(make(first), names)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda p: torch.optim.SGD([p]), "sgd"),
        (lambda p: torch.optim.SGD([p], momentum=0.9, nesterov=True), "momentum"),
        (lambda p: torch.optim.RMSprop([p]), "rmsprop"),
        (lambda p: torch.optim.Adagrad([p]), "adagrad"),
        (lambda p: torch.optim.Adafactor([p]), "adafactor"),
    ],
)
def test_kinds(make: Any, kind: str) -> None:
    first, _, names = parameters()
    assert read_optimizer(make(first), names).groups["a"].kind == kind
