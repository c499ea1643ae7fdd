"""The minimum cut between what is given and what is needed, against all ways to store."""

from __future__ import annotations

import itertools
import random

import pytest

from memplan.solver.maxflow import Run, cut


def cost_of(
    kept: set[int], weights: dict[int, int], needed: list[int], runs: list[Run[int]]
) -> float:
    """What it costs to keep some values and make what else is needed of them again."""
    maker = {value: k for k, run in enumerate(runs) for value in run.writes}
    total: float = sum(weights[value] for value in kept)
    waiting, recomputed = list(needed), set[int]()
    while waiting:
        value = waiting.pop()
        if value in kept or (value in maker and maker[value] in recomputed):
            continue
        if value not in maker:
            return float("inf")
        run = runs[maker[value]]
        if run.cost is None:
            return float("inf")
        recomputed.add(maker[value])
        total += run.cost
        waiting += run.reads
    return total


@pytest.mark.parametrize("seed", range(30))
def test_least_cost(seed: int) -> None:
    """Values 0 and 1 are given; every other is made of one or two before it."""
    draw = random.Random(seed)
    weights = {value: draw.randint(0, 9) for value in range(8)}
    runs = [
        Run(
            tuple(draw.sample(range(value), draw.randint(1, 2))),
            (value,),
            draw.choice([None, 0, 1, 5]),
        )
        for value in range(2, 8)
    ]
    needed = draw.sample(range(8), 2)
    found = cut(weights, [0, 1], needed, runs)
    assert found is not None
    assert not found.kept & found.below
    subsets = (
        set(chosen) for size in range(9) for chosen in itertools.combinations(range(8), size)
    )
    least = min(cost_of(kept, weights, needed, runs) for kept in subsets)
    assert cost_of(set(found.kept), weights, needed, runs) == least


def test_late() -> None:
    assert cut({0: 1, 1: 1}, [0], [1], [Run((0,), (1,), 1)], late=lambda: True) is None
