"""Strategies by name, with options, and the simplest of them."""

from __future__ import annotations

import pytest

from helpers.problems import LONG_SKIP
from memplan.errors import UsageError
from memplan.solver.strategies.builtin import BUILT_IN, Greedy, Keep, Search, parse_strategy
from memplan.solver.strategies.spec import options_of

SECONDS = 30.0  # far more than any of these needs: they end by iterations
FORCED = "t0 t1 t2 t3 t4 t5 t6 t7 s t0 join"


def test_greedy_takes_no_time_and_keeps_the_order() -> None:
    decision = Greedy().solve(LONG_SKIP.problem(8), 1e9).decision
    assert LONG_SKIP.text(decision.sequence) == FORCED


def test_none_recomputes_nothing() -> None:
    for budget, feasible in ((12, True), (11, False)):
        problem = LONG_SKIP.problem(budget)
        decision = Keep().solve(problem, SECONDS).decision
        assert decision.sequence.tolist() == problem.order.tolist()
        assert (decision.peak, decision.feasible) == (12, feasible)


def test_search_by_iterations() -> None:
    decision = Search(order=0, iterations=20).solve(LONG_SKIP.problem(8), SECONDS).decision
    assert decision.feasible
    assert decision.extra_cost == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("auto", Search()),
        ("search", Search()),
        (" greedy ", Greedy()),
        ("none", Keep()),
        ("none{}", Keep()),
        ("search{order=0, seed=12}", Search(order=0, seed=12)),
        ("auto{iterations=5}", Search(iterations=5)),
    ],
)
def test_strategies_by_name(text: str, wanted: object) -> None:
    assert parse_strategy(text) == wanted


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "best",
            "unknown strategy 'best'",
            "strategies: auto, collection, greedy, list, memory, min-cut, mirror",
        ),
        ("search{depth=3}", "strategy 'search' has no option 'depth'", "seed"),
        ("greedy{seed=1}", "strategy 'greedy' has no option 'seed'", "it has: none"),
        ("search{seed=x}", "search{seed=x}: expected a whole number", ""),
        ("search{seed}", "search{seed=}: expected a whole number", ""),
        ("search{seed=-1}", "search{seed=-1}: expected a whole number", ""),
        ("search{seed=1", "expected a strategy, got 'search{seed=1'", "NAME{option=value,...}"),
        ("", "expected a strategy, got ''", "NAME"),
    ],
)
def test_a_wrong_strategy_is_explained(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_strategy(text)
    assert caught.value.message == message
    assert hint in caught.value.hint


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_option_says_what_it_is_for(name: str) -> None:
    """ "cut=1: 0 or 1" tells nobody what 0 does."""
    kind = BUILT_IN[name]
    assert set(kind.meanings) == {option.name for option in options_of(kind)}
    assert all(option.meaning for option in options_of(kind))
