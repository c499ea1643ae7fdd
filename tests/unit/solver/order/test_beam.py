"""Orders made anew by a beam, and what they promise."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from helpers.graphs import TUNED, open_text
from helpers.orders import CHAINS, excess
from helpers.problems import Case, Op
from helpers.steps import irregular, random_step
from memplan.planning.planner import PlanRequest, prepare
from memplan.simulate.run_order import execution_order
from memplan.solver.evaluate import IMPOSSIBLE, evaluate
from memplan.solver.jit import seed_random
from memplan.solver.order.beam import resequence
from memplan.solver.order.depth_first import depth_first
from memplan.solver.problem import Ints, Problem
from memplan.solver.search.params import PARAMS
from memplan.solver.search.starts import Starts


def anew(problem: Problem, width: int, noise: float = 0.0) -> Ints:
    """The whole sequence put in order by a beam."""
    length = len(problem.start)
    return resequence(
        problem.arrays, problem.start, problem.movable, problem.budget, 0, length, width, noise
    )


def test_one_chain_after_the_other() -> None:
    problem = CHAINS.problem(10)
    assert CHAINS.peak(CHAINS.order) == 17
    found = anew(problem, 4)
    assert CHAINS.text(found) in ("a b c d end", "c d a b end")
    assert CHAINS.peak(found) == 10


def test_nodes_that_must_stay_keep_their_order() -> None:
    problem = replace(CHAINS.problem(10), movable=np.zeros(5, np.bool_))
    assert CHAINS.text(anew(problem, 4)) == "a c b d end"


def test_only_the_window_changes() -> None:
    problem = CHAINS.problem(10)
    found = resequence(problem.arrays, problem.start, problem.movable, 10, 1, 4, 4, 0.0)
    assert CHAINS.text(found) == "a b c d end"


def test_a_value_is_read_before_the_next_one_is_made() -> None:
    # e reads the first run of a, f the second; neither may cross the second run.
    case = Case(
        Op("a", "x", 8),
        Op("e", "a", 1),
        Op("big", "e", 9),
        Op("f", "a big", 1, output=True),
        resident="x",
    )
    problem = replace(case.problem(12), start=case.sequence("a e big a f"))
    assert case.text(anew(problem, 8)) == "a e big a f"


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
    assert excess(problem, anew(problem, 400)) == best


@pytest.mark.parametrize("seed", range(30))
def test_new_orders_read_what_the_old_ones_did(seed: int) -> None:
    _, problem = random_step(seed)
    seed_random(seed)
    draw = np.random.default_rng(seed)
    movable = problem.movable & ~problem.arrays.eager
    starts = Starts(problem, movable, draw, PARAMS)
    for number in range(3):
        order = starts.ordered(number, counted=True)
        assert sorted(order) == sorted(problem.start)
        assert evaluate(problem.arrays, order).total.max() < IMPOSSIBLE


def test_a_shaken_plan_still_computes_everything() -> None:
    fewer = 0
    for seed in range(30):
        _, problem = random_step(seed)
        again = [node for node in problem.order if problem.arrays.maker.tolist().count(node)][:4]
        plan = np.concatenate([problem.order[:-1], again, problem.order[-1:]])
        draw = np.random.default_rng(seed)
        movable = problem.movable & ~problem.arrays.eager
        shaken = Starts(problem, movable, draw, PARAMS).shaken(plan)
        assert set(shaken) >= set(problem.order)
        assert evaluate(problem.arrays, shaken).total.max() < IMPOSSIBLE
        fewer += len(shaken) < len(plan)
    assert fewer > 5


def test_depth_first_is_the_runtimes_default_order() -> None:
    model = open_text(
        """g (float[4] x) => (float[4] y, float[4] z) {
          a = Exp(x)  b = Sin(x)  c = Add(a, b)  y = Cos(b)  d = Mul(c, a)  z = Neg(d)
        }"""
    )
    request = PlanRequest(model.graph, TUNED, 1 << 30, lambda graph: [1.0] * len(graph.nodes))
    found = depth_first(prepare(request).encoded.problem(1 << 30)).tolist()
    expected = execution_order(model.graph, replace(TUNED, priority_order=False))
    assert found == expected
    assert found != list(range(len(found)))
