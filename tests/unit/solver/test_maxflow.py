"""Maximum flows and minimum cuts, against a textbook and against all cuts and ways to store."""

import itertools
import random

import numpy as np
import pytest

from memplan.solver.maxflow import Network, Run, cut


def test_the_maximum_flow_of_a_textbook_network() -> None:
    # Cormen, Leiserson, Rivest, Stein: 'Introduction to Algorithms', figure 26.1: 23.
    network = Network(6)
    for source, target, capacity in (
        (0, 2, 16),
        (0, 3, 13),
        (3, 2, 4),
        (2, 4, 12),
        (4, 3, 9),
        (3, 5, 14),
        (5, 4, 7),
        (4, 1, 20),
        (5, 1, 4),
    ):
        network.connect(source, target, capacity)
    assert network.saturate() == 23
    assert network.source_side() == {0, 2, 3, 5}


def test_a_flow_that_gets_late_is_no_answer() -> None:
    network = Network(3)
    network.connect(0, 2, 1)
    network.connect(2, 1, 1)
    assert network.saturate(lambda: True) is None


def test_flows_against_cuts_by_brute_force() -> None:
    draw = np.random.default_rng(2)
    for _ in range(400):
        edges = [tuple(draw.integers(0, 7, 2).tolist()) for _ in range(16)]
        rooms = draw.integers(0, 9, 16).tolist()
        network = Network(7)
        for (a, b), room in zip(edges, rooms, strict=True):
            network.connect(a, b, room)
        cuts = [
            sum(
                room
                for (a, b), room in zip(edges, rooms, strict=True)
                if a in side and b not in side
            )
            for side in ({0} | {2 + k for k in range(5) if mask >> k & 1} for mask in range(32))
        ]
        assert network.saturate() == min(cuts)


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
        if not run.again:
            return float("inf")
        recomputed.add(maker[value])
        waiting += run.reads
    return total


@pytest.mark.parametrize("seed", range(30))
def test_least_weight(seed: int) -> None:
    """Values 0 and 1 are given; every other is made of one or two before it."""
    draw = random.Random(seed)
    weights = {value: draw.randint(0, 9) for value in range(8)}
    runs = [
        Run(
            tuple(draw.sample(range(value), draw.randint(1, 2))),
            (value,),
            draw.choice([False, True, True, True]),
        )
        for value in range(2, 8)
    ]
    needed = draw.sample(range(8), 2)
    found = cut(weights, [0, 1], needed, runs)
    assert not found.kept & found.below
    subsets = (
        set(chosen) for size in range(9) for chosen in itertools.combinations(range(8), size)
    )
    least = min(cost_of(kept, weights, needed, runs) for kept in subsets)
    assert cost_of(set(found.kept), weights, needed, runs) == least


def test_late() -> None:
    assert cut({0: 1, 1: 1}, [0], [1], [Run((0,), (1,), True)], late=lambda: True) is None
