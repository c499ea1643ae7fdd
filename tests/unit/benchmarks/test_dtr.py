"""Dynamic tensor rematerialization: what is evicted, and when it comes back."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.models import load_benchmark
from helpers.problems import Case, Op
from helpers.steps import chain, check, problem_of, random_step
from memplan.deadline import Deadline
from memplan.solver.links import links_of
from memplan.solver.strategies.keepset import judge

_machine = load_benchmark("plans.dtr_machine")
GivenUp, Machine, Neighbours = _machine.GivenUp, _machine.Machine, _machine.Neighbours
Dtr = load_benchmark("plans.dtr").Dtr

SECONDS = 30.0


@pytest.mark.parametrize("heuristic", ["h_eq", "h_local"])
@pytest.mark.parametrize("budget", range(5, 11))
def test_dtr_keeps_its_budget_on_a_chain(heuristic: str, budget: int) -> None:
    case = chain(12)
    problem = problem_of(case, budget)
    decision = Dtr(heuristic).solve(problem, SECONDS).decision
    check(problem, decision, case)
    assert decision.feasible
    assert decision.extra_cost >= 12 + 2 - budget  # every byte less is one more to make again


@pytest.mark.parametrize(
    ("sizes", "costs", "read", "budget", "victim"),
    [
        ((3, 3), (5.0, 5.0, 5.0), "x", 11, "a"),  # a is staler
        ((3, 3), (5.0, 5.0, 5.0), "a", 11, "b"),  # a has been read meanwhile
        ((3, 3), (9.0, 1.0, 9.0), "x", 11, "b"),  # b is cheaper
        ((3, 4), (5.0, 5.0, 45.0), "x", 12, "b"),  # b is larger, and they are nearly as stale
    ],
)
def test_dtr_evicts_what_is_stale_large_and_cheap(
    sizes: tuple[int, int], costs: tuple[float, float, float], read: str, budget: int, victim: str
) -> None:
    # When wide runs there is no room for both a and b; c is in use.
    case = Case(
        Op("a", "x", sizes[0], costs[0]),
        Op("b", "x", sizes[1], costs[1]),
        Op("c", "x", 3, costs[2]),
        Op("n", read, 0),
        Op("wide", "c", 3),
        Op("w", "wide"),
        Op("join", "w a b c n", output=True),
        resident="x",
    )
    problem = case.problem(budget)
    run = Machine(problem, links_of(problem), budget, None, Deadline()).run()
    assert case.text(run) == f"a b c n wide w {victim} join"


@pytest.mark.parametrize(("equal", "again"), [(False, "e a"), (True, "b")])
def test_what_is_gone_beside_a_storage_makes_it_dearer_to_h_eq(equal: bool, again: str) -> None:
    # a alone is cheaper than b, but e, of which it is made, is gone when wide needs room.
    case = Case(
        Op("e", "x", 3, 4.0),
        Op("a", "e", 3, 4.0),
        Op("b", "x", 3, 6.0),
        Op("c", "x", 3, 45.0),
        Op("wide", "c", 5),
        Op("w", "wide"),
        Op("join", "w a b c", output=True),
        resident="x",
    )
    problem = case.problem(13)
    links = links_of(problem)
    run = Machine(problem, links, 13, Neighbours.of(links) if equal else None, Deadline()).run()
    assert case.text(run) == f"e a b c wide w {again} join"


def test_evicted_neighbours_count_once() -> None:
    # 0 - 1 - 2 - 3 in a row, 4 beside 1 and 3; costs 1, 2, 4, 8, 16.
    pairs = {0: [1], 1: [0, 2, 4], 2: [1, 3], 3: [2, 4], 4: [1, 3]}
    table = np.full((6, 3), 5, np.int64)
    for root, near in pairs.items():
        table[root, : len(near)] = near
    classes = _machine._Classes(Neighbours(table), np.asarray([1.0, 2.0, 4.0, 8.0, 16.0]))

    def around() -> list[float]:
        return classes.around(np.arange(5)).tolist()

    classes.evicted(1)
    assert around() == [2.0, 0.0, 2.0, 0.0, 2.0]
    classes.evicted(3)  # not next to 1: a class of its own; 2 and 4 see both
    assert around() == [2.0, 0.0, 10.0, 8.0 - 8.0, 10.0]
    classes.evicted(2)  # joins them
    assert around()[4] == 14.0
    classes.made(3)  # leaves, but nothing is split
    assert around()[4] == 6.0
    assert around()[0] == 6.0
    classes.made(1)
    classes.made(2)
    assert around() == [0.0] * 5


def test_a_run_that_cannot_go_on_says_so() -> None:
    problem = problem_of(chain(6), 2)
    with pytest.raises(GivenUp):
        Machine(problem, links_of(problem), 2, None, Deadline()).run()
    with pytest.raises(GivenUp):  # no time left
        Machine(problem, links_of(problem), 99, None, Deadline(0.0)).run()


def test_dtr_does_not_give_back_what_an_evicted_tensor_is_made_from() -> None:
    # The program reads mask last at s, but a has been evicted and can only be made from it.
    case = Case(
        Op("mask", "x", 1, again=False),
        Op("a", "mask", 3),
        Op("n", "a"),
        Op("p", "n", 4),
        Op("q", "p", 4),
        Op("s", "q mask"),
        Op("join", "a s", output=True),
        resident="x",
    )
    decision = Dtr().solve(case.problem(9), SECONDS).decision
    assert case.text(decision.sequence) == "mask a n p q s a join"
    assert decision.feasible


def test_dtr_does_not_evict_what_cannot_be_made_any_more() -> None:
    # a is the cheapest to evict, but mask, of which it was made, has been given back; so z goes.
    case = Case(
        Op("mask", "x", 1, again=False),
        Op("a", "mask", 3),
        Op("z", "x", 3, 50.0),
        Op("n", "a mask"),
        Op("p", "n", 4),
        Op("q", "p", 4),
        Op("r", "q"),
        Op("join", "a z r", output=True),
        resident="x",
    )
    problem = case.problem(11)
    run = Machine(problem, links_of(problem), 11, None, Deadline()).run()
    assert case.text(run) == "mask a z n p q r z join"
    with pytest.raises(GivenUp):
        Machine(problem, links_of(problem), 8, None, Deadline()).run()


def test_dtr_knows_of_outputs_that_overwrite_an_input() -> None:
    case = Case(
        Op("a", "x", 4), Op("r", "a", 4, 1.0, "inplace"), Op("end", "r", output=True), resident="x"
    )
    problem = case.problem(5)
    run = Machine(problem, links_of(problem), 5, None, Deadline()).run()
    assert run.tolist() == case.order.tolist()
    assert case.peak(run) == 5


def test_dtr_does_not_evict_what_waits_for_the_rest() -> None:
    # join has u and lacks f, which is made from u, and e. When e needs room, g must go, not u.
    case = Case(
        Op("u", "x", 3),
        Op("e", "x", 3),
        Op("f", "u", 3),
        Op("wide", "x", 11),
        Op("w", "wide"),
        Op("g", "x", 3, 100.0),
        Op("h", "u w"),
        Op("join", "u e f h"),
        Op("end", "g join", output=True),
        resident="x",
    )
    problem = case.problem(12)
    run = Machine(problem, links_of(problem), 12, None, Deadline()).run()
    assert case.text(run) == "u e f wide w g u h f e join g end"


def test_dtr_runs_again_with_what_its_accounting_wasted() -> None:
    better = 0
    for seed in range(40):
        _, problem = random_step(seed)
        links = links_of(problem)
        try:
            run = Machine(problem, links, problem.budget, Neighbours.of(links), Deadline()).run()
        except GivenUp:
            continue
        once, several = judge(problem, run), Dtr().solve(problem, SECONDS).decision
        assert several.feasible >= once.feasible
        if once.feasible:
            assert several.extra_cost <= once.extra_cost
            better += several.extra_cost < once.extra_cost
    assert better > 0
