"""Recomputations that were asked for stay, wherever they have to stand."""

from __future__ import annotations

import pytest

from helpers.problems import LONG_SKIP, Case
from helpers.steps import check
from memplan.deadline import Deadline
from memplan.solver.search.anytime import solve
from memplan.solver.search.params import SearchOptions
from memplan.solver.strategies.builtin import Keep

FIXED = SearchOptions(order=False, iterations=40)
MOVING = SearchOptions(order=True, iterations=40)
SECONDS = 30.0  # far more than any of these needs: they end by iterations
FORCED = "t0 t1 t2 t3 t4 t5 t6 t7 s t0 join"


@pytest.mark.parametrize("budget", [100, 12, 8])
@pytest.mark.parametrize("options", [FIXED, MOVING], ids=["fixed", "moving"])
def test_a_recomputation_that_was_asked_for_stays(budget: int, options: SearchOptions) -> None:
    problem = LONG_SKIP.problem(budget, FORCED, protected="t0")
    decision = solve(problem, Deadline(SECONDS), options)
    assert decision.feasible
    assert decision.sequence.tolist().count(0) == 2
    assert decision.extra_cost == pytest.approx(1.0)


TWO_SKIPS = Case("""
    a(x):4  b(x):4  n(a b)  p1(n):4 p2(p1):4 p3(p2)  q1(p3):4 q2(q1):4 q3(q2)  join(a q3)
    end(b join)!""")


def test_a_recomputation_that_was_asked_for_stays_beside_one_that_is_needed() -> None:
    # 13 bytes need one of the two; b was asked for, so a need not give way.
    start = "a b n p1 p2 p3 q1 q2 q3 join b end"
    problem = TWO_SKIPS.problem(13, start, protected="b")
    decision = solve(problem, Deadline(SECONDS), FIXED)
    assert decision.sequence.tolist() == problem.start.tolist()
    # 9 bytes need both.
    tight = TWO_SKIPS.problem(9, start, protected="b")
    both = solve(tight, Deadline(SECONDS), FIXED)
    check(tight, both, TWO_SKIPS)
    assert both.feasible
    assert TWO_SKIPS.text(both.sequence) == "a b n p1 p2 p3 q1 q2 q3 a join b end"


@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(order=False),
        MOVING,
    ],
    ids=["fixed", "moving"],
)
@pytest.mark.parametrize("protected", ["", "t0"])
def test_a_recomputation_at_a_bad_place_is_done_elsewhere(
    options: SearchOptions, protected: str
) -> None:
    start = "t0 t1 t0 t2 t3 t4 t5 t6 t7 s join"
    decision = solve(LONG_SKIP.problem(8, start, protected), Deadline(0.2), options)
    assert LONG_SKIP.text(decision.sequence) == FORCED


def test_recomputing_nothing_more_still_costs_what_was_asked_for() -> None:
    decision = Keep().solve(LONG_SKIP.problem(12, FORCED, protected="t0"), SECONDS).decision
    assert decision.feasible
    assert decision.extra_cost == pytest.approx(1.0)
