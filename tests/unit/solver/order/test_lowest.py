"""The order of least peak, against all orders that there are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from helpers.problems import Case, Op
from helpers.steps import random_step
from memplan.solver.evaluate import evaluate
from memplan.solver.order.local import settle
from memplan.solver.order.lowest import LowestOptions, lowest_order


def orders(case: Case) -> Iterator[list[int]]:
    """Every order in which values are made before they are read."""
    made = {
        name: k for k, op in enumerate(case.ops) for name, _ in case._outputs(op) if not op.rebuilds
    }
    nodes: list[int] = case.order.tolist()
    needs = {n: {made[name] for name in case.ops[n].reads.split() if name in made} for n in nodes}

    def extend(done: list[int]) -> Iterator[list[int]]:
        if len(done) == len(nodes):
            yield done
        for node in nodes:
            if node not in done and needs[node] <= set(done):
                yield from extend([*done, node])

    yield from extend([])


def peak(case: Case, order: object) -> int:
    """Bytes, with eager nodes where the runtime puts them."""
    sequence = settle(case.arrays, np.asarray(order, dtype=np.int64))
    return int(evaluate(case.arrays, sequence).total.max())


@pytest.mark.parametrize("seed", range(12))
def test_small_steps_reach_the_least_peak_of_all_orders(seed: int) -> None:
    case, problem = random_step(seed, length=4)
    problem.movable[:] = True
    found = lowest_order(problem, LowestOptions(rounds=30))
    assert sorted(found.tolist()) == sorted(problem.order.tolist())
    assert peak(case, found) == min(peak(case, order) for order in orders(case))


def test_the_search_ends_at_the_floor_and_keeps_what_is_lowest() -> None:
    case = Case(Op("a", "x", 4), Op("b", "a", 4, output=True), resident="x")
    problem = case.problem(0)
    assert lowest_order(problem, LowestOptions(rounds=5)).tolist() == [0, 1]
    assert lowest_order(problem, LowestOptions(floor=8)).tolist() == [0, 1]


def test_other_starts_are_tried_too() -> None:
    case = Case(
        Op("a", "x", 8),
        Op("b", "x", 8),
        Op("c", "a"),
        Op("d", "b"),
        Op("e", "c d", output=True),
        resident="x",
    )
    problem = case.problem(0)
    problem.movable[:] = False  # no move is left: only a start can be lower
    options = LowestOptions(rounds=3)
    assert case.text(lowest_order(problem, options)) == "a b c d e"
    other = case.sequence("a c b d e").tolist()
    assert case.text(lowest_order(problem, options, [other])) == "a c b d e"
    worse = case.sequence("b a c d e").tolist()
    assert case.text(lowest_order(problem, options, [worse])) == "a b c d e"
