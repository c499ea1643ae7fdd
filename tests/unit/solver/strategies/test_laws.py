"""Laws of all strategies, and of the planner that the benchmarks compare them with: what any plan
must be, whoever made it."""

import time
from dataclasses import replace

import pytest

from helpers.checkpoints import SECONDS, labelled
from helpers.models import load_benchmark
from helpers.steps import chain, check, problem_of, random_step
from memplan.errors import UsageError
from memplan.solver.strategies.builtin import BUILT_IN

by_name = load_benchmark("plans.training_graphs").peer_or_strategy

FREE = ("segments", "segments{count=3}", "min-cut", "min-cut{ban=0}")
FREE += ("knapsack", "knapsack{budget=50}", "knapsack{cut=0}")
MIRRORS = ("mirror", "mirror{times=1}", "mirror{test=0,times=9}")
ONE_PLAN = ("speed", "memory", "list{names=f2+f3+f9+f15}", "collection", *MIRRORS)
STRATEGIES = (*FREE, *ONE_PLAN, "none", "greedy", "search{iterations=2}")


def test_every_strategy_is_held_to_them() -> None:
    assert {name.partition("{")[0] for name in STRATEGIES} == {*BUILT_IN, "knapsack"}
    listed = {name for name, item in BUILT_IN.items() if item.ignores_budget}
    assert listed == {name.partition("{")[0] for name in ONE_PLAN}


@pytest.mark.parametrize("name", STRATEGIES)
def test_plans_of_random_steps_are_what_they_say(name: str) -> None:
    lower = 0
    for seed in range(40):
        case, problem = random_step(seed)
        problem = labelled(case, problem, marked="f5 f10 f20")
        try:
            decision = by_name(name).solve(problem, SECONDS).decision
        except UsageError:
            assert name in ("memory", "speed")
            continue
        check(problem, decision, case)
        lower += decision.peak < case.peak(case.order)
    assert lower > 5 or name == "none"  # else nothing was tried


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "memory"])
@pytest.mark.parametrize("budget", [9, 7])
def test_recomputations_that_were_asked_for_stay(name: str, budget: int) -> None:
    case = chain(8)
    start = "f1 f2 f3 f4 f5 f6 f7 f8 loss b8 b7 b6 b5 b4 b3 f2 b2 b1"
    problem = problem_of(case, budget, intensive="f4", start=start, protected="f2")
    problem = labelled(case, problem, marked="f4")
    name = name.replace("+f9+f15", "")
    decision = by_name(name).solve(problem, SECONDS).decision
    check(problem, decision, case)
    assert decision.sequence.tolist().count(case.place["f2"]) >= 2


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name not in ONE_PLAN])
def test_a_budget_that_holds_changes_nothing(name: str) -> None:
    case = chain(6)
    decision = by_name(name).solve(problem_of(case, 8), SECONDS).decision
    assert decision.sequence.tolist() == case.order.tolist()
    assert (decision.peak, decision.extra_cost, decision.feasible) == (8, 0.0, True)


@pytest.mark.parametrize("name", FREE)
def test_time_that_is_over_is_respected(name: str) -> None:
    case, problem = random_step(1, 400)
    begin = time.process_time()
    decision = by_name(name).solve(problem, 0.0).decision
    assert time.process_time() - begin < 2.0
    check(problem, decision, case)


@pytest.mark.parametrize("name", [*FREE, *ONE_PLAN])
def test_those_that_choose_what_the_forward_part_keeps_need_to_know_it(name: str) -> None:
    unknown = replace(problem_of(chain(4), 4), forward=None)
    with pytest.raises(UsageError, match="no forward nodes are known"):
        by_name(name).solve(unknown, SECONDS)


@pytest.mark.parametrize("name", ["segments", "speed", "memory"])
def test_progress_is_told_of_plans_that_fit(name: str) -> None:
    told: list[tuple[int, float]] = []
    problem = problem_of(chain(9), 99 if name in ONE_PLAN else 8, intensive="f4 f7")
    found = by_name(name).solve(problem, SECONDS, lambda *plan: told.append(plan)).decision
    assert told[-1] == (found.peak, found.extra_cost / 19)
