"""How hard a plan is looked for: rounds for the search, or seconds where they are asked."""

from dataclasses import replace

import pytest

from memplan.api.rewrite.goal import strategy_for
from memplan.api.sweep.request import plan_for
from memplan.options import DEFAULT_EFFORT, DEFAULT_PLAN, RewriteOptions
from memplan.solver.strategies.builtin import Search
from memplan.units import parse_size

BUDGET = parse_size("60%")


def planned_by(**fields: object) -> RewriteOptions:
    """How a point is planned."""
    plan = RewriteOptions(BUDGET, **fields)  # type: ignore[arg-type]
    return plan_for(plan, BUDGET, "tuned", "cpu")


@pytest.mark.parametrize(
    ("strategy", "search"),
    [
        ("auto", Search(iterations=7)),
        ("search", Search(iterations=7)),
        ("search{order=0,seed=5}", Search(order=0, iterations=7, seed=5)),
        ("search{iterations=2}", Search(iterations=2)),
    ],
)
def test_a_search_counts_rounds(strategy: str, search: Search) -> None:
    options = planned_by(strategy=strategy, effort=7)
    assert strategy_for(options) == search
    assert options.effort == search.iterations


def test_other_strategies_stay_as_they_are() -> None:
    options = planned_by(strategy="greedy", effort=7)
    assert options.strategy == "greedy"
    assert options.effort > 0  # the clock does not stop it


def test_seconds_replace_rounds() -> None:
    options = planned_by(time_limit=2.5)
    assert (options.strategy, options.time_limit, options.effort) == ("auto", 2.5, 0)


def test_a_sweep_hands_its_options_on() -> None:
    plan = replace(DEFAULT_PLAN, keep=("a*",), optimize="none", loss="l", reserve=parse_size("1MB"))
    options = plan_for(plan, BUDGET, "default", "cuda")
    assert options == replace(plan, budget=BUDGET, session="default", provider="cuda")
    assert options.effort == DEFAULT_EFFORT
