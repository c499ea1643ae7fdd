"""How hard a plan is looked for: rounds for the search, or seconds where they are asked."""

from __future__ import annotations

import pytest

from memplan.api.rewrite.goal import RewriteOptions, strategy_for
from memplan.api.sweep.effort import DEFAULT_EFFORT, with_effort
from memplan.api.sweep.request import SweepOptions
from memplan.errors import UsageError
from memplan.solver.strategies.builtin import Search
from memplan.units import parse_size

BUDGET = parse_size("60%")


@pytest.mark.parametrize(
    ("strategy", "search"),
    [
        ("auto", Search(iterations=7, seed=3)),
        ("search", Search(iterations=7, seed=3)),
        ("search{order=0,seed=5}", Search(order=0, iterations=7, seed=5)),
        ("search{iterations=2}", Search(iterations=2, seed=3)),
    ],
)
def test_a_search_counts_rounds(strategy: str, search: Search) -> None:
    options = with_effort(RewriteOptions(BUDGET, strategy=strategy), 7, 3, None)
    assert strategy_for(options) == search
    assert options.effort == search.iterations


def test_other_strategies_stay_as_they_are() -> None:
    options = with_effort(RewriteOptions(BUDGET, strategy="greedy"), 7, 3, None)
    assert options.strategy == "greedy"
    assert options.effort > 0  # the clock does not stop it
    assert options.seed is None


def test_seconds_replace_rounds() -> None:
    options = with_effort(RewriteOptions(BUDGET), 7, 3, 2.5)
    assert (options.strategy, options.time_limit, options.effort) == ("auto", 2.5, 0)


def test_an_unknown_strategy_is_wrong_use() -> None:
    with pytest.raises(UsageError, match="there is no strategy"):
        with_effort(RewriteOptions(BUDGET, strategy="magic"), 7, 3, None)


def test_a_sweep_hands_its_options_on() -> None:
    asked = SweepOptions(keep=("a*",), optimize="basic", loss="l", reserve=parse_size("1MB"))
    options = asked.plan(BUDGET, "default", "cuda")
    assert (options.session, options.provider, options.loss) == ("default", "cuda", "l")
    assert (options.keep, options.optimize) == (("a*",), "basic")
    assert options.reserve == parse_size("1MB")
    assert options.effort == DEFAULT_EFFORT
