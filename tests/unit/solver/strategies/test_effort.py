"""Plans by rounds: repeatable, certified; and the lowest peak."""

from dataclasses import replace

import pytest

from helpers.problems import Clock
from helpers.steps import check, random_step
from memplan.deadline import Deadline
from memplan.solver.bound.milp import Effort
from memplan.solver.evaluate import decide
from memplan.solver.problem import Problem
from memplan.solver.search.lowest_peak import lowest_peak
from memplan.solver.search.params import SearchOptions
from memplan.solver.strategies.builtin import parse_strategy
from memplan.solver.strategies.lowest_peak_strategy import Lowest
from memplan.solver.strategies.portfolio import PortfolioOptions, solve_portfolio

COUNTED = PortfolioOptions(iterations=12, seed=3)


def test_counted_rounds_give_the_same_plan_and_the_same_bound() -> None:
    _, problem = random_step(2)
    plans = [solve_portfolio(problem, Deadline(limit), COUNTED) for limit in (1e-9, 1e6)]
    assert plans[0][0].sequence.tolist() == plans[1][0].sequence.tolist()
    assert plans[0][1] == plans[1][1]
    assert plans[0][1].kind == "order-free"


def test_a_finished_plan_ends_the_rounds() -> None:
    _, problem = random_step(2)
    wide = replace(COUNTED, iterations=100_000, gap=10.0)
    found, _ = solve_portfolio(problem, Deadline(), wide)  # would take minutes
    assert found.feasible


def tight(problem: Problem) -> tuple[Problem, int]:
    """The problem at the floor of its largest node, and its peak without recomputation."""
    peak = decide(problem, problem.order).peak
    return replace(problem, budget=1), peak


@pytest.mark.parametrize("seed", range(4))
def test_the_lowest_peak_is_lower_and_true(seed: int) -> None:
    case, problem = random_step(seed)
    floor, peak = tight(problem)
    options = SearchOptions(seed=1, iterations=10)
    found = lowest_peak(floor, decide(floor, floor.start), Effort(), options)
    assert found.peak < peak
    check(floor, found, case)
    # A plan for less is a plan for more.
    looser = solve_portfolio(replace(problem, budget=found.peak), Deadline(), COUNTED)[0]
    assert looser.peak <= found.peak or not looser.feasible


@pytest.mark.parametrize("seed", range(4))
def test_more_time_never_ends_higher(seed: int) -> None:
    """By a clock that every look moves on."""
    floor, _ = tight(random_step(seed)[1])
    lowest = Lowest(parse_strategy("search"))
    limits = (1.0, 10.0, 40.0, 160.0, 640.0)
    peaks = [lowest.down(floor, Deadline(limit, Clock())).peak for limit in limits]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[0] > peaks[-1]


@pytest.mark.parametrize("seed", range(3))
def test_the_lowest_plan_that_is_known_is_never_lost(seed: int) -> None:
    floor, _ = tight(random_step(seed)[1])
    first = Lowest(parse_strategy("search")).solve(floor, 1.0).decision
    known = replace(floor, known=(first.sequence,))
    again = Lowest(parse_strategy("search{seed=7}")).solve(known, 0.05).decision
    assert again.peak <= first.peak
    assert again.peak < first.peak or again.extra_cost <= first.extra_cost


@pytest.mark.parametrize("name", ["search{iterations=10}", "greedy", "segments"])
def test_the_least_budget_of_a_strategy_is_what_it_then_keeps(name: str) -> None:
    case, problem = random_step(1)
    floor, peak = tight(problem)
    outcome = Lowest(parse_strategy(name)).solve(floor, 5.0)
    assert outcome.decision.peak < peak
    check(
        replace(floor, budget=outcome.decision.peak), replace(outcome.decision, feasible=True), case
    )
