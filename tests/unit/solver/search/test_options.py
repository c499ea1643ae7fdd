"""What ends a search, what it depends on, and what it tells."""

from __future__ import annotations

import pytest

from helpers.problems import LONG_SKIP, NESTED, Clock
from helpers.steps import irregular
from memplan.deadline import Deadline
from memplan.solver.evaluate import decide
from memplan.solver.problem import Ints
from memplan.solver.search.anytime import solve
from memplan.solver.search.params import SearchOptions

FIXED = SearchOptions(order=False, iterations=40)
SECONDS = 30.0  # far more than any of these needs: they end by iterations


def test_a_search_says_what_it_tried_and_why_it_stopped(caplog: pytest.LogCaptureFixture) -> None:
    case = irregular(3)
    problem = case.problem(int(0.8 * case.peak(case.order)))
    with caplog.at_level("DEBUG", "memplan.solver"):
        found = solve(problem, Deadline(), SearchOptions(seed=7, iterations=5))
    assert {record.name for record in caplog.records} == {"memplan.solver.search.anytime"}
    *tried, end = caplog.records
    assert end.levelname == "INFO"
    assert {record.levelname for record in tried} == {"DEBUG"}
    assert sum(": start " in record.getMessage() for record in tried) == 3
    text = end.getMessage()
    assert text.startswith("search (nodes may move, seed 7): +")
    assert f"+{100 * found.extra_cost / problem.base_cost:.3f}% after 3 starts" in text
    assert text.endswith("; rounds are over")


def test_fixed_iterations_end_on_an_infeasible_budget() -> None:
    deadline = Deadline(SECONDS, Clock(0.001, looks=3000))
    decision = solve(NESTED.problem(8), deadline, SearchOptions(order=False, iterations=5))
    assert not decision.feasible


def test_the_caller_can_say_what_is_enough() -> None:
    told: list[float] = []

    def enough(extra: float) -> bool:
        told.append(extra)
        return True

    decision = solve(LONG_SKIP.problem(8), Deadline(), FIXED, enough=enough)
    assert decision.feasible
    assert told


def test_every_better_plan_is_told() -> None:
    told: list[Ints] = []
    problem = LONG_SKIP.problem(8)
    solve(problem, Deadline(), FIXED, found=told.append)
    decisions = [decide(problem, sequence) for sequence in told]
    assert all(each.feasible for each in decisions)
    assert decisions[-1].peak == 8
    assert decisions[-1].extra_cost == pytest.approx(1.0)
    costs = [each.extra_cost for each in decisions]
    assert costs == sorted(costs, reverse=True)
