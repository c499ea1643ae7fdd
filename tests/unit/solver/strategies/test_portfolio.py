"""Several searches, the peers and the certificate together."""

import math
import threading
import time
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest

from helpers.effort import few_by_day
from helpers.problems import Clock
from helpers.steps import chain, check, irregular, problem_of, random_step
from memplan.deadline import Deadline
from memplan.solver.bound import milp
from memplan.solver.evaluate import evaluate
from memplan.solver.problem import Decision, Problem
from memplan.solver.search.params import SearchParams
from memplan.solver.strategies import incumbent, portfolio
from memplan.solver.strategies.bottlenecks import Memory
from memplan.solver.strategies.incumbent import Incumbent
from memplan.solver.strategies.portfolio import (
    PortfolioOptions,
    PortfolioParams,
    solve_portfolio,
)
from memplan.solver.strategies.segments import Segments

pytestmark = pytest.mark.slow
FREE = PortfolioOptions()
IN_ORDER = PortfolioOptions(order=False)


def hard_problem(seed: int, share: float = 0.8) -> Problem:
    """A problem with something to recompute."""
    case = irregular(seed)
    return case.problem(int(share * case.peak(case.order)))


@pytest.mark.parametrize("seed", range(4))
def test_the_bound_is_not_above_the_plan_and_a_plan_that_is_known_is_never_lost(seed: int) -> None:
    problem = hard_problem(seed)
    for options in (FREE, IN_ORDER):
        found, bound = solve_portfolio(problem, Deadline(0.0), replace(options, iterations=8))
        assert found.peak == int(evaluate(problem.arrays, found.sequence).total.max())
        assert found.feasible == (found.peak <= problem.budget)
        if found.feasible:
            assert bound.seconds <= found.extra_cost + 1e-9
    first, _ = solve_portfolio(problem, Deadline(0.0), replace(FREE, iterations=8))
    assert first.feasible
    known = replace(problem, known=(problem.order, first.sequence))
    for limit in (0.0, 0.2):
        again, _ = solve_portfolio(known, Deadline(limit), replace(FREE, seed=7))
        assert again.feasible
        assert again.extra_cost <= first.extra_cost


def test_a_bound_that_is_met_ends_the_search_in_the_order_that_was_given() -> None:
    problem = hard_problem(3, 0.9)
    started = time.process_time()
    found, bound = solve_portfolio(problem, Deadline(600.0), IN_ORDER)
    assert time.process_time() - started < 300
    assert found.feasible
    assert found.extra_cost > 0
    first = np.unique(found.sequence, return_index=True)[1]
    assert found.sequence[np.sort(first)].tolist() == problem.order.tolist()
    assert bound.seconds == pytest.approx(found.extra_cost)
    assert bound.kind == "for this node order"


def test_where_there_is_a_plan_a_step_that_looks_at_no_clock_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stuck, seen = threading.Event(), []

    def publish(self: portfolio._Portfolio) -> None:
        seen.append(self._options(1).halt)
        stuck.wait(300)

    monkeypatch.setattr(portfolio._Portfolio, "_publish", publish)
    started = time.monotonic()
    found, _ = solve_portfolio(hard_problem(3, 0.9), Deadline(0.5), IN_ORDER)
    taken = time.monotonic() - started
    stuck.set()
    assert found.feasible
    assert taken < 100
    assert seen[0].all()  # what is compiled hears of it


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
    monkeypatch.setattr(portfolio._Portfolio, "_work", nothing)
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


def quality(found: Decision) -> tuple[bool, float]:
    """Of two plans the better one has less of it."""
    return not found.feasible, found.extra_cost if found.feasible else found.peak


@pytest.mark.nightly
@pytest.mark.parametrize("share", [0.8, 0.45])
def test_more_time_never_gives_a_worse_plan(share: float) -> None:
    """By a clock that every look moves on: a longer run begins as a shorter one."""
    options = PortfolioOptions(certify=False, params=PortfolioParams(threads=1))
    better = 0
    for seed in range(6):
        problem = hard_problem(seed, share)
        found = [
            quality(solve_portfolio(problem, Deadline(limit, Clock()), options)[0])
            for limit in (1.0, 10.0, 40.0, 160.0, 640.0, 2560.0)
        ]
        assert found == sorted(found, reverse=True)
        better += found[0] > found[-1]
    assert better


@pytest.mark.parametrize("seed", range(6))
def test_a_plan_is_no_worse_than_those_of_published_planners(seed: int) -> None:
    _, problem = random_step(seed)
    found, _ = solve_portfolio(problem, Deadline(), PortfolioOptions(iterations=1, certify=False))
    for planner in (Memory(), Segments()):
        assert quality(found) <= quality(planner.solve(problem, 10.0).decision)


SWITCHES = {
    "starts": (0, 3),
    "best_few": (0, 3),
    "longest_beam": (0, 6000),
    "new_order_every": (1, 3),
    "ease_calls": (0, 25),
    "moving": (0.0, 0.5),
    "heat": (0.0, 0.03),
}


@pytest.mark.parametrize("seed", few_by_day(range(40)))
def test_switching_cleverness_off_changes_no_answer(seed: int) -> None:
    """In any combination: the plan is one, it reads what is there, and no bound is above it."""
    draw = np.random.default_rng(seed)
    case, problem = random_step(seed % 8, 6)
    search = SearchParams(**{name: draw.choice(values) for name, values in SWITCHES.items()})
    options = PortfolioOptions(
        order=bool(draw.integers(2)),
        certify=bool(draw.integers(2)),
        iterations=int(draw.choice([1, 12])),
        params=PortfolioParams(followed=int(draw.choice([0, 3])), looks=int(draw.choice([1, 2]))),
        search=search,
    )
    found, bound = solve_portfolio(problem, Deadline(), options)
    check(problem, found, case)
    least = case.cheapest(problem.budget, 2)
    assert least is None or bound.seconds <= least + 1e-9
    assert not found.feasible or bound.seconds <= found.extra_cost + 1e-9


def made(extra: float, feasible: bool = True, peak: int = 5) -> Decision:
    """A decision that costs ``extra`` seconds."""
    return Decision(np.zeros(0, np.int64), peak, extra, feasible)


def of_chain(gap: float) -> Incumbent:
    """For a step of nine seconds."""
    return Incumbent(problem_of(chain(4), 5), gap)


def test_a_plan_within_the_gap_of_the_bound_is_enough() -> None:
    shared = of_chain(gap=0.1)
    shared.keep(made(3.0), "search")
    shared.learn(2.0)
    assert not shared.closed  # a gap of 0.9 s is allowed
    shared.learn(2.2)
    assert shared.closed
    assert shared.wanted() == pytest.approx(3.0 - 0.1 * shared.base)


def test_bounds_only_rise_and_plans_only_improve() -> None:
    shared = of_chain(gap=0.0)
    shared.keep(made(3.0), "search")
    shared.keep(made(4.0), "dtr")
    shared.learn(2.0)
    shared.learn(1.0)
    assert (shared.best.extra_cost, shared.source, shared.bound.seconds) == (3.0, "search", 2.0)


def test_while_nothing_fits_no_bound_is_enough_but_a_proof_is() -> None:
    shared = of_chain(gap=0.1)
    shared.keep(made(1.0, feasible=False), "search")
    shared.learn(1e9)
    assert not shared.closed
    shared.learn(math.inf)
    assert shared.closed
    assert shared.certificate().seconds == math.inf


def test_a_bound_above_a_plan_is_dropped_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(incumbent, "contradicted", told.append)
    shared = of_chain(gap=0.0)
    shared.keep(made(1.0), "search")
    shared.learn(2.0)
    assert shared.certificate().seconds == 0
    assert len(told) == 1
    assert "contradicts" in shared.certificate().kind


def test_a_solver_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """HiGHS 1.16 tells its version when it is made; ``--format json`` is JSON and nothing else."""
    milp._silent_solver().run()
    assert capfd.readouterr() == ("", "")
