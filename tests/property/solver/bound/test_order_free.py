"""The order-free certificate against brute force over all orders and recomputations."""

from collections import deque
from random import Random

import numpy as np
import pytest

from helpers.effort import tries
from helpers.every_order import asked_case, cheapest_by_peak, every_sequence, loose_case
from helpers.problems import Case
from helpers.steps import random_step
from memplan.solver.bound.events import EventProgram
from memplan.solver.bound.milp import Effort
from memplan.solver.bound.order_free import OrderFreeBound, OrderFreeParams
from memplan.solver.bound.precedence import Precedence, find_precedence
from memplan.solver.bound.relaxation import relax
from memplan.solver.evaluate import evaluate
from memplan.solver.problem import Ints, Problem
from memplan.solver.strategies.builtin import parse_strategy


def forever() -> float:
    """No bound is enough."""
    return np.inf


AGAIN = 2  # further runs that brute force tries


def chains(case: Case, precedence: Precedence, draw: Random) -> list[tuple[int, ...]]:
    """Every node as an event, and some chains of two and three."""
    order = case.order.tolist()
    longer: list[tuple[int, ...]] = []
    for first in order:
        for second in sorted(precedence.descendants(first) & set(order)):
            longer.append((first, second))
            thirds = sorted(precedence.descendants(second) & set(order))
            longer.extend((first, second, third) for third in thirds)
    return [(node,) for node in order] + draw.sample(longer, min(6, len(longer)))


def examine(seed: int) -> list[bool]:
    """Whether some events meet the optimum, for every budget of a case; none may exceed it."""
    case, draw, met = loose_case(seed), Random(seed), []
    costs = cheapest_by_peak(case, AGAIN, most=4000)
    precedence = find_precedence(case.problem(1))
    peak = case.peak(case.order)
    for budget in sorted({min(costs), (min(costs) + peak) // 2, peak - 1}):
        problem = case.problem(budget)
        best = min((c for p, c in costs.items() if p <= budget), default=np.inf)
        found = 0.0
        for events in chains(case, precedence, draw):
            program = EventProgram(relax(problem), precedence, events, problem.base_cost)
            whole = program.solve(Effort(), 1e-6, np.inf).seconds
            relaxed = program.solve(Effort(), 1e-6, np.inf, relaxed=True).seconds
            assert relaxed <= whole + 1e-4 * max(1.0, best), (seed, budget, events)
            assert whole <= best * (1 + 1e-5) + 1e-4, (seed, budget, events)
            found = max(found, whole)
        if 0 < best < np.inf:
            met.append(found > best - 1e-3)
    return met


@pytest.mark.slow
def test_no_plan_in_any_order_is_cheaper_than_the_bound() -> None:
    met = [flag for seed in range(tries(150)) for flag in examine(seed)]
    assert len(met) > tries(150) // 5
    # A bound of 0 would be sound, too.
    assert np.mean(met) > 0.4


def examine_asked(seed: int, most: int = 4000) -> list[bool]:
    """The same for what a rewrite may ask, with the bound as planners get it; whether it is met."""
    asked, draw, met = asked_case(seed), Random(seed), []
    case = asked.case
    between = sum(len(form.encode) + form.decode - form.encode[-1] - 2 for form in asked.forms)
    costs = cheapest_by_peak(case, AGAIN + between, most, asked)
    if not costs:
        return []
    precedence = find_precedence(asked.problem(1))
    peak = case.peak(case.order)
    for budget in sorted({min(costs), (min(costs) + peak) // 2, peak - 1}):
        problem = asked.problem(budget)
        best = min((c for p, c in costs.items() if p <= budget), default=np.inf)
        bound = OrderFreeBound(problem, Effort())
        deque(bound.look(asked.start, forever), 0)
        found = bound.seconds
        for events in chains(case, precedence, draw):
            program = EventProgram(relax(problem), precedence, events, problem.base_cost)
            found = max(found, program.solve(Effort(), 1e-6, np.inf).seconds)
        assert found <= best * (1 + 1e-5) + 1e-4, (seed, budget)
        # What is asked for is paid for beyond any bound: the bounds know nothing of it.
        if 0 < best < np.inf and not asked.protected.any():
            met.append(found > best - 1e-3)
    return met


def bound_of(problem: Problem, order_kept: bool, params: OrderFreeParams | None = None) -> float:
    """What is certified for a problem in seconds, from where its own order is full."""
    bound = OrderFreeBound(problem, Effort(), params=params, order_kept=order_kept)
    deque(bound.look(problem.order, forever), 0)
    return bound.seconds


@pytest.mark.slow
def test_no_plan_in_the_order_of_the_file_is_cheaper_than_the_bound_for_it() -> None:
    met, tighter = [], 0
    for seed in range(100):
        case = loose_case(seed)
        peak = case.peak(case.order)
        for budget in (peak - 1, 3 * peak // 4):
            problem, best = case.problem(budget), case.cheapest(budget, AGAIN)
            if best is None:
                continue
            free, kept = bound_of(problem, False), bound_of(problem, True)
            assert kept <= best * (1 + 1e-5) + 1e-4, (seed, budget)
            assert kept >= free - 1e-3, (seed, budget)
            tighter += kept > free + 1e-3
            met.append(kept > best - 1e-3)
    assert len(met) > 12
    assert np.mean(met) > 0.4
    assert tighter > 1


SWITCHES = {
    "full": (0.5, 0.97),
    "looks": (1, 16),
    "solved": (0, 5),
    "worth": (0.0, 0.8),
    "most_events": (1, 4),
    "gap": (0.5, 1e-4),
    "small": (0.3, 1e-4),
    "small_from": (0, 400),
}


@pytest.mark.parametrize("seed", range(30))
def test_no_combination_of_its_switches_lifts_the_bound_above_a_plan(seed: int) -> None:
    draw, case = Random(seed), loose_case(seed)
    params = OrderFreeParams(**{name: draw.choice(each) for name, each in SWITCHES.items()})
    for budget in (case.peak(case.order) - 1, 3 * case.peak(case.order) // 4):
        best = case.cheapest(budget, AGAIN)
        for order_kept in (False, True):
            found = bound_of(case.problem(budget), order_kept, params)
            assert best is None or found <= best * (1 + 1e-5) + 1e-4


@pytest.mark.slow
def test_no_plan_that_packs_or_renews_state_is_cheaper_than_the_bound() -> None:
    met = [flag for seed in range(tries(300)) for flag in examine_asked(seed)]
    assert any(met)


def test_what_is_certain_to_run_before_did_in_every_order() -> None:
    for seed in range(60):
        case = loose_case(seed)
        precedence = find_precedence(case.problem(1))
        ancestors = {n: precedence.ancestors(n) for n in case.order.tolist()}
        descendants = {n: precedence.descendants(n) for n in case.order.tolist()}
        for node, found in ancestors.items():
            assert all(node in descendants[other] for other in found & set(descendants))
        for count, sequence in enumerate(every_sequence(case, 1)):
            first = first_runs(sequence)
            for node, found in ancestors.items():
                assert all(first[other] < first[node] for other in found), (seed, node)
            if count > 200:
                break


def first_runs(sequence: Ints) -> dict[int, int]:
    """Node → position of its first run."""
    return {node: p for p, node in reversed(list(enumerate(sequence.tolist())))}


def test_a_rule_that_may_run_first_leaves_no_certainty() -> None:
    case = Case("a(x)?  b(a)!  rule(x)+rebuilds=a")
    precedence = find_precedence(case.problem(1))
    assert precedence.ancestors(case.place["b"]) == set()


def test_a_rule_that_reads_what_its_node_makes_beside_changes_nothing() -> None:
    case = Case("a(x)?+mask:1  b(a)!  rule(mask)+rebuilds=a")
    precedence = find_precedence(case.problem(1))
    assert precedence.ancestors(case.place["b"]) == {case.place["a"]}


def test_no_strategy_undercuts_the_bound() -> None:
    tried = 0
    for seed in range(6):
        _, problem = random_step(seed)
        bound = OrderFreeBound(problem, Effort(nodes=40))
        for name in ("search{iterations=10}", "greedy", "segments", "min-cut", "mirror"):
            decision = parse_strategy(name).solve(problem, 20.0).decision
            if decision.feasible:
                deque(bound.look(decision.sequence, forever), 0)
                assert bound.seconds <= decision.extra_cost * (1 + 1e-6), (seed, name)
                tried += 1
    assert tried > 12


def test_a_bound_of_nothing_but_impossible_says_so() -> None:
    case = Case("a(x):4  b(x):4  c(a b):4!")
    problem = case.problem(11)  # c needs all three
    bound = OrderFreeBound(problem, Effort())
    deque(bound.look(problem.order, forever), 0)
    assert bound.seconds == np.inf


def test_starts_run_every_node_and_read_nothing_unmade() -> None:
    described = 0
    for seed in range(8):
        _, problem = random_step(seed)
        bound = OrderFreeBound(problem, Effort(nodes=40))
        for start in bound.look(problem.order, forever):
            assert set(problem.order.tolist()) <= set(start.tolist())
            assert evaluate(problem.arrays, start).total.max() < 1 << 59
            described += 1
    assert described > 5


def test_counted_effort_gives_the_same_bound_again() -> None:
    _, problem = random_step(3)

    def bound() -> float:
        found = OrderFreeBound(problem, Effort(nodes=5))
        deque(found.look(problem.order, forever), 0)
        return found.seconds

    assert bound() == bound()
