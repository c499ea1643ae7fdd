"""Orders made anew, by moves and by a beam, the lowest of all, and where eager nodes stand."""

from itertools import permutations

import numpy as np
import pytest

from helpers.every_order import every_sequence
from helpers.problems import Case
from helpers.steps import irregular, random_step
from memplan.solver.evaluate import IMPOSSIBLE, evaluate, excess_of
from memplan.solver.jit import seed_random
from memplan.solver.order.beam import resequence
from memplan.solver.order.local import reorder, settle
from memplan.solver.order.lowest import LowestOptions, lowest_order
from memplan.solver.problem import Ints, Problem
from memplan.solver.search.params import PARAMS
from memplan.solver.search.starts import Starts


def excess(problem: Problem, sequence: Ints) -> float:
    """Bytes over the budget, summed over steps."""
    return float(excess_of(evaluate(problem.arrays, sequence), problem.budget))


@pytest.mark.parametrize("seed", range(8))
def test_a_wide_beam_finds_the_best_order_of_a_small_graph(seed: int) -> None:
    case = irregular(seed, 7)
    budget = case.peak(case.order) - 3
    problem = case.problem(budget)
    orders = (np.asarray(order, np.int64) for order in permutations(range(7)))
    best = min(
        excess(problem, order)
        for order in orders
        if evaluate(case.arrays, order).total.max() < IMPOSSIBLE
    )
    found = resequence(problem.arrays, problem.start, problem.movable, budget, 400, 0.0)
    assert excess(problem, found) == best


@pytest.mark.parametrize("seed", range(30))
def test_new_orders_compute_the_same_and_moves_never_raise_the_excess(seed: int) -> None:
    _, problem = random_step(seed)
    seed_random(seed)
    draw = np.random.default_rng(seed)
    movable = problem.movable & ~problem.arrays.eager
    starts = Starts(problem, movable, draw, PARAMS)
    moved, left = reorder(problem.arrays, problem.start, movable, problem.budget, 300)
    assert left == excess(problem, moved) <= excess(problem, problem.start)
    for order in (moved, *(starts.ordered(number) for number in range(3))):
        assert sorted(order) == sorted(problem.start)
        assert evaluate(problem.arrays, order).total.max() < IMPOSSIBLE
    again = [node for node in problem.order if problem.arrays.maker.tolist().count(node)][:4]
    shaken = starts.shaken(np.concatenate([problem.order[:-1], again, problem.order[-1:]]))
    assert set(shaken) >= set(problem.order)
    assert evaluate(problem.arrays, shaken).total.max() < IMPOSSIBLE


def peak(case: Case, order: Ints) -> int:
    """Bytes, with eager nodes where the runtime puts them."""
    return int(evaluate(case.arrays, settle(case.arrays, order)).total.max())


@pytest.mark.parametrize("seed", range(12))
def test_small_steps_reach_the_least_peak_of_all_orders(seed: int) -> None:
    case, problem = random_step(seed, length=4)
    problem.movable[:] = True
    found = lowest_order(problem, LowestOptions(rounds=30))
    assert sorted(found.tolist()) == sorted(problem.order.tolist())
    assert peak(case, found) == min(peak(case, order) for order in every_sequence(case, 0))


def test_the_search_ends_at_the_floor() -> None:
    assert lowest_order(Case("a(x):4  b(a):4!").problem(0), LowestOptions(floor=8)).tolist() == [
        0,
        1,
    ]


EAGER = Case("a(x)  s(a)+eager  e(x)+eager  b(a)  c(b)  d(c s)!")
BOTH = Case("a(x)  s(a)+eager  size(s)+eager  b(x)  c(a size b)!")


@pytest.mark.parametrize(
    ("case", "given", "wanted"),
    [
        (EAGER, "a s b c d", "a s b c d"),
        (EAGER, "a b c s d", "a s b c d"),
        (EAGER, "a b a s c d", "a s b a c d"),
        (EAGER, "a b c e d s", "e a s b c d"),
        (BOTH, "a b s size c", "a s size b c"),  # one that reads another follows it
    ],
)
def test_eager_nodes_are_settled_behind_what_they_read(case: Case, given: str, wanted: str) -> None:
    assert case.text(settle(case.arrays, case.sequence(given))) == wanted
