"""The knapsack of torch's partitioner: against all subsets, and worked by hand."""

from __future__ import annotations

import numpy as np

from helpers.models import load_benchmark
from helpers.problems import Case
from helpers.steps import problem_of
from memplan.solver.strategies.mincut import MinCut

_knapsack = load_benchmark("plans.knapsack")
Knapsack, Packing = _knapsack.Knapsack, _knapsack.Packing

SECONDS = 30.0


def test_a_knapsack_against_all_subsets() -> None:
    draw = np.random.default_rng(5)
    for _ in range(20):
        values = draw.integers(1, 30, 8).astype(float)
        weights = draw.integers(0, 9, 8)
        packing = Packing(values.tolist(), weights.tolist(), most=20)
        subsets = (np.arange(256)[:, None] >> np.arange(8)) & 1
        for room in (0, 7, 20):
            best = (subsets @ values)[subsets @ weights <= room].max()
            chosen = packing.chosen(room)
            assert values[chosen].sum() == best
            assert weights[chosen].sum() <= room


SIZES = Case("a(x):4  b(a):4$5  c(b):2$3  loss(c):0  gc(loss c b):2  gb(gc a):4  ga(gb a):4!")


def test_the_plain_knapsack_keeps_what_is_worth_most() -> None:
    # Of ten bytes of stash six may stay: b and c, worth eight seconds; a runs again.
    problem = problem_of(SIZES, 10)
    assert SIZES.peak(SIZES.order) == 12
    decision = Knapsack(budget=60, cut=0).solve(problem, SECONDS).decision
    assert SIZES.text(decision.sequence) == "a b c loss gc a gb ga"
    assert decision.extra_cost == 1.0


def test_a_sweep_takes_the_cheapest_share_that_fits() -> None:
    for budget in (12, 10, 9):
        swept = Knapsack(cut=0).solve(problem_of(SIZES, budget), SECONDS).decision
        each = [
            Knapsack(budget=share, cut=0).solve(problem_of(SIZES, budget), SECONDS).decision
            for share in range(1, 101)
        ]
        costs = [decision.extra_cost for decision in each if decision.feasible]
        assert swept.feasible == bool(costs)
        assert swept.extra_cost == min(costs, default=swept.extra_cost)


def test_the_knapsack_frees_banned_nodes_that_do_not_fit() -> None:
    # m1 and m2 are banned; a share for one of them keeps the dearer one.
    case = Case("m1(x):400$2  m2(m1):400$7  loss(m2):0  g2(loss m2 m1):400  g1(g2 m1):400!")
    problem = problem_of(case, 1, intensive="m1 m2")
    plans = {
        share: case.text(Knapsack(budget=share).solve(problem, SECONDS).decision.sequence)
        for share in (40, 60, 100)
    }
    assert plans == {
        40: "m1 m2 loss m1 m2 g2 g1",
        60: "m1 m2 loss m1 g2 g1",
        100: "m1 m2 loss g2 g1",
    }


def test_the_whole_share_is_the_minimum_cut() -> None:
    # Both products together are more than the whole (their sum), but they are not run again.
    case = Case("m1(x):400$2  m2(x):400$7  sum(m1 m2):500  loss(sum):0!  g(loss sum):400!")
    problem = problem_of(case, 1, intensive="m1 m2")
    whole = Knapsack(budget=100).solve(problem, SECONDS).decision
    assert whole.sequence.tolist() == case.order.tolist()
    assert MinCut().solve(problem, SECONDS).decision.sequence.tolist() == case.order.tolist()
    assert Knapsack(budget=99).solve(problem, SECONDS).decision.extra_cost > 0
