"""An eager step leaves no trace, and says what it computed."""

import random
from typing import Any

import numpy as np
import pytest

import memplan
from helpers.with_torch import nn, torch
from memplan.pytorch.eager import Eager
from memplan.pytorch.prepared_step import prepare


class Net(nn.Module):  # type: ignore[name-defined,misc]
    """A normalization with statistics, a table that a step may write to, tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 6, max_norm=0.1)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.norm, self.drop = nn.BatchNorm1d(6), nn.Dropout(0.5)

    def forward(self, tokens: Any) -> Any:
        x = self.table(tokens).sum(1)
        return self.second(self.drop(self.norm(self.first(x)))).pow(2).mean()


def eager(loss: Any = None) -> tuple[Any, Eager]:
    torch.manual_seed(0)
    model = Net()
    batch = {"tokens": torch.randint(0, 7, (8, 3))}
    return model, Eager(prepare(memplan.TorchStep(model, loss, batch)))


@pytest.mark.parametrize("wide", [False, True])
def test_nothing_is_left_behind(wide: bool) -> None:
    model, step = eager()
    model.first.weight.grad = torch.ones(6, 6)
    model.norm.eval()
    step.state = step.state.again()
    held = dict(model.state_dict(keep_vars=True))
    before = {n: t.detach().clone() for n, t in held.items()}
    states = torch.get_rng_state(), random.getstate(), repr(np.random.get_state(legacy=False))
    step.run(wide=wide, watched=True)
    after = model.state_dict(keep_vars=True)
    assert all(after[name] is tensor for name, tensor in held.items())
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert torch.equal(model.first.weight.grad, torch.ones(6, 6))
    assert model.table.weight.grad is None
    assert not model.norm.training
    assert model.drop.training
    now = torch.get_rng_state(), random.getstate(), repr(np.random.get_state(legacy=False))
    assert torch.equal(states[0], now[0])
    assert states[1:] == now[1:]


def test_nothing_is_left_behind_by_a_step_that_fails() -> None:
    def fails(model: Any, tokens: Any) -> Any:
        model(tokens)
        raise KeyError("no")

    model, step = eager(fails)
    before = {n: t.detach().clone() for n, t in model.state_dict().items()}
    with pytest.raises(KeyError):
        step.run(wide=True)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def test_gradients_are_those_of_backward() -> None:
    model, step = eager()
    model.drop.eval()
    step.state = step.state.again()
    found = step.run()
    model(step.prepared.batch["tokens"]).backward()
    for name, parameter in step.parameters.items():
        torch.testing.assert_close(found.values["gradient", name], parameter.grad)
    assert float(found.values["buffer", "norm.num_batches_tracked"]) == 1


def test_two_runs_have_the_same_draws_and_float64_is_near() -> None:
    _, step = eager()
    first, again, wide = step.run(), step.run(), step.run(wide=True)
    assert first.loss == again.loss
    assert [d.family for d in first.draws] == ["uniform"]
    assert abs(first.loss - wide.loss) < 1e-6
    assert wide.values["gradient", "first.weight"].dtype == torch.float64


def test_other_values_can_be_given() -> None:
    _, step = eager()
    zero = {name: torch.zeros_like(p) for name, p in step.parameters.items()}
    assert step.run(values=zero).loss == 0


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_random_numbers_from_outside_of_pytorch_are_noticed(draw: Any) -> None:
    assert not eager()[1].run().outside
    assert eager(lambda model, tokens: model(tokens) * float(draw()))[1].run().outside


def test_bytes_of_what_the_step_makes() -> None:
    def loss(model: Any, tokens: Any) -> Any:
        big = torch.ones(1000, 1000)
        return model(tokens) + (big * 2).sum() * 0

    without = eager()[1].run(watched=True).peak_bytes
    held = eager(loss)[1].run(watched=True).peak_bytes
    assert 7_990_000 <= held - without <= 12_100_000
