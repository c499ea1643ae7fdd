"""Random numbers of an eager step that can be had again."""

import numpy as np
import pytest

from helpers.with_torch import torch
from memplan.pytorch.draws import NORMAL, UNIFORM, Draws, TorchDraw

F = torch.nn.functional
x = torch.linspace(-2, 2, 4000).reshape(10, 400)


OPERATORS = {
    "dropout": lambda: F.dropout(x, 0.3),
    "dropout2d": lambda: F.dropout2d(x.reshape(1, 400, 10, 1), 0.3),
    "alpha_dropout": lambda: F.alpha_dropout(x, 0.3, True),
    "native_dropout": lambda: torch.native_dropout(x, 0.3, True)[0],
    "bernoulli": lambda: torch.bernoulli(torch.full((4000,), 0.3)),
    "bernoulli_p": lambda: torch.empty(4000).bernoulli_(0.3),
    "rand": lambda: torch.rand(4000),
    "rand_like": lambda: torch.rand_like(x),
    "uniform_": lambda: torch.empty(4000).uniform_(-1, 3),
    "randn": lambda: torch.randn(4000),
    "randn_like": lambda: torch.randn_like(x),
    "normal": lambda: torch.normal(torch.zeros(4000), torch.ones(4000)),
    "normal_size": lambda: torch.normal(1.0, 2.0, (4000,)),
    "normal_": lambda: torch.empty(4000).normal_(1, 2),
    "exponential_": lambda: torch.empty(4000).exponential_(2.0),
    "gumbel": lambda: F.gumbel_softmax(x, hard=True),
    "randint": lambda: torch.randint(2, 9, (4000,)).float(),
    "randint_like": lambda: torch.randint_like(x, 9),
    "random_": lambda: torch.empty(4000).random_(9),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_the_same_numbers_come_again_and_are_distributed_as_pytorchs(name: str) -> None:
    found = []
    for number in (0, 0, 1):
        with Draws(number) as draws:
            found.append(OPERATORS[name]())
        assert len(draws.made) == 1
        assert not draws.unknown
    first, again, other = found
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.manual_seed(0)
    theirs = OPERATORS[name]()
    spread = float(theirs.std()) + 1e-3
    assert abs(float(first.mean()) - float(theirs.mean())) < 0.1 * spread
    assert abs(float(first.std()) / spread - 1) < 0.1


def test_what_draws_nothing_takes_no_draw() -> None:
    q = torch.ones(1, 2, 4, 8, requires_grad=True)
    layers = torch.nn.LSTM(8, 8, 2), torch.nn.GRU(8, 8, 2, dropout=0.5).eval()
    with Draws() as draws:
        F.dropout(x, 0.5, training=False)
        F.dropout(x, 0.0)
        F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
        for layer in layers:
            layer(q[0])
    assert draws.made == []
    assert draws.unknown == []


def test_random_operators_without_a_form_here_are_named() -> None:
    with Draws() as draws:
        torch.multinomial(torch.ones(4), 2)
        torch.randperm(5)
    assert draws.unknown == ["multinomial", "randperm"]


@pytest.mark.parametrize("p", [0.1, 0.25, 0.3, 0.5, 0.7, 0.9])
def test_no_number_is_so_near_a_threshold_that_rounding_decides(p: float) -> None:
    numbers = TorchDraw(UNIFORM, (5000,), "", (0, 0)).values()
    assert (np.abs(numbers - p) > 1e-5).all()
    assert (numbers.astype(np.float16).astype(np.float32) == numbers).all()
    assert ((numbers > p) == ((1 - numbers) < 1 - p)).all()


def test_numbers_depend_on_family_round_and_place() -> None:
    seeds = [(0, 0), (0, 1), (1, 0)]
    draws = [TorchDraw(family, (8,), "", seed) for family in (UNIFORM, NORMAL) for seed in seeds]
    assert len({draw.values().tobytes() for draw in draws}) == 6
