"""Several searches, the peers and the certificate together."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest

from helpers.steps import irregular
from memplan.deadline import Deadline
from memplan.solver.evaluate import evaluate
from memplan.solver.problem import Problem
from memplan.solver.strategies import portfolio
from memplan.solver.strategies.portfolio import (
    PortfolioOptions,
    PortfolioParams,
    solve_portfolio,
)

pytestmark = pytest.mark.slow

FREE = PortfolioOptions()
IN_ORDER = PortfolioOptions(order=False)


def hard_problem(seed: int, share: float = 0.8) -> Problem:
    """A problem with something to recompute."""
    case = irregular(seed)
    return case.problem(int(share * case.peak(case.order)))


@pytest.mark.parametrize("seed", range(4))
def test_the_bound_is_not_above_the_plan(seed: int) -> None:
    problem = hard_problem(seed)
    for options in (FREE, IN_ORDER):
        found, bound = solve_portfolio(problem, Deadline(1.0), options)
        assert found.peak == int(evaluate(problem.arrays, found.sequence).total.max())
        assert found.feasible == (found.peak <= problem.budget)
        if found.feasible:
            assert bound.seconds <= found.extra_cost + 1e-9


def test_in_order_the_first_runs_keep_their_order_and_the_bound_is_met() -> None:
    problem = hard_problem(3, 0.9)
    found, bound = solve_portfolio(problem, Deadline(20.0), IN_ORDER)
    assert found.feasible
    assert found.extra_cost > 0
    first = np.unique(found.sequence, return_index=True)[1]
    assert found.sequence[np.sort(first)].tolist() == problem.order.tolist()
    assert bound.seconds == pytest.approx(found.extra_cost)
    assert bound.kind == "for this node order"


def test_a_bound_that_is_met_ends_the_search() -> None:
    problem = hard_problem(3, 0.9)
    started = time.process_time()
    solve_portfolio(problem, Deadline(600.0), IN_ORDER)
    assert time.process_time() - started < 300


def test_where_there_is_a_plan_a_step_that_looks_at_no_clock_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stuck = threading.Event()
    monkeypatch.setattr(portfolio._Portfolio, "_second_thread", lambda self: stuck.wait(300))
    started = time.monotonic()
    found, _ = solve_portfolio(hard_problem(3, 0.9), Deadline(0.5), IN_ORDER)
    taken = time.monotonic() - started
    stuck.set()
    assert found.feasible
    assert taken < 100


@pytest.mark.parametrize("seed", range(3))
def test_a_plan_that_is_known_is_never_lost(seed: int) -> None:
    problem = hard_problem(seed)
    first, _ = solve_portfolio(problem, Deadline(1.0), FREE)
    assert first.feasible
    known = replace(problem, known=(problem.order, first.sequence))
    for limit in (0.0, 0.2):
        again, _ = solve_portfolio(known, Deadline(limit), replace(FREE, seed=7))
        assert again.feasible
        assert again.extra_cost <= first.extra_cost


def test_an_interrupt_gives_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def interrupted(self: object, futures: list[Future[None]]) -> None:
        calls.append(futures)
        for future in futures:
            future.result()
        raise KeyboardInterrupt

    monkeypatch.setattr(portfolio._Portfolio, "_wait", interrupted)
    problem = hard_problem(3, 0.9)
    found, _ = solve_portfolio(problem, Deadline(1.0), replace(IN_ORDER, certify=False))
    assert len(calls) == 1
    assert found.feasible


def test_an_interrupt_before_any_plan_is_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: object, futures: list[Future[None]]) -> None:
        raise KeyboardInterrupt

    def nothing(self: object, *args: object) -> None:
        return None

    monkeypatch.setattr(portfolio._Portfolio, "_wait", interrupted)
    monkeypatch.setattr(portfolio._Portfolio, "_search", nothing)
    with pytest.raises(KeyboardInterrupt):
        solve_portfolio(hard_problem(0), Deadline(1.0), FREE)


def test_a_certificate_in_trouble_costs_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: object) -> None:
        raise ValueError("no such row")

    monkeypatch.setattr(portfolio, "OrderFreeBound", failing)
    found, bound = solve_portfolio(hard_problem(3, 0.9), Deadline(2.0), IN_ORDER)
    assert found.feasible
    assert bound.seconds == 0
    assert "no such row" in bound.kind


def test_counted_iterations_depend_on_the_seed_alone() -> None:
    problem = hard_problem(5)
    options = PortfolioOptions(seed=3, iterations=15)
    first, again = (solve_portfolio(problem, Deadline(0.0), options)[0] for _ in range(2))
    assert first.sequence.tolist() == again.sequence.tolist()


def test_the_portfolio_says_who_made_the_plan(caplog: pytest.LogCaptureFixture) -> None:
    problem = hard_problem(3, 0.9)
    with caplog.at_level("INFO", "memplan.solver.strategies"):
        found, _ = solve_portfolio(problem, Deadline(0.5), FREE)
    best = [r.getMessage() for r in caplog.records if r.getMessage().startswith("best so far: ")]
    assert best[-1].startswith(
        f"best so far: +{100 * found.extra_cost / problem.base_cost:.3f}% by "
    )
    maker = best[-1].rpartition(" by ")[2]
    assert caplog.records[-1].getMessage().startswith(f"plan by {maker} after ")


def test_the_plans_of_the_certificate_can_be_left_out() -> None:
    params = PortfolioParams(followed=0)
    problem = hard_problem(3, 0.9)
    for order in (False, True):
        found, _ = solve_portfolio(
            problem, Deadline(0.5), PortfolioOptions(order=order, params=params)
        )
        assert found.feasible
