"""Moves of single nodes, and what they promise."""

from __future__ import annotations

import pytest

from helpers.orders import CHAINS, excess
from helpers.steps import random_step
from memplan.solver.evaluate import IMPOSSIBLE, evaluate
from memplan.solver.jit import seed_random
from memplan.solver.order.local import reorder


@pytest.mark.parametrize("seed", range(30))
def test_moves_never_raise_the_excess(seed: int) -> None:
    _, problem = random_step(seed)
    seed_random(seed)
    movable = problem.movable & ~problem.arrays.eager
    found, left = reorder(problem.arrays, problem.start, movable, problem.budget, 300)
    assert left == excess(problem, found) <= excess(problem, problem.start)
    assert sorted(found) == sorted(problem.start)
    assert evaluate(problem.arrays, found).total.max() < IMPOSSIBLE


def test_moves_find_a_better_order() -> None:
    problem = CHAINS.problem(10)
    seed_random(0)
    found, left = reorder(problem.arrays, problem.start, problem.movable, 10, 500)
    assert left == 0
    assert CHAINS.peak(found) == 10
