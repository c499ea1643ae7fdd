"""The search on small problems whose best answer is known (and checked by brute force)."""

import numpy as np
import pytest

from helpers.problems import LONG_SKIP, NESTED, Case
from helpers.steps import check
from memplan.deadline import Deadline
from memplan.solver.search.anytime import solve
from memplan.solver.search.params import SearchOptions

FIXED = SearchOptions(order=False, iterations=40)
MOVING = SearchOptions(order=True, iterations=40)
SECONDS = 30.0  # far more than any of these needs: they end by iterations
# By name: a budget, the least extra cost and how many clones brute force tries; the problem.
OPTIMA: dict[str, tuple[tuple[int, float, int], Case | str]] = {
    "chain of eight with a long skip": ((8, 1.0, 2), LONG_SKIP),
    "nested closure": ((9, 3.0, 3), NESTED),
    # a is small: cheaper to keep it than to run it again.
    "source kept instead": (
        (9, 1.0, 2),
        "a(x)$2  b(a):4  p1(b):4 p2(p1):4 p3(p2)  q1(p3):4 q2(q1):4 q3(q2)  join(q3 b)!",
    ),
    "three instances of one node": (
        (9, 2.0, 3),
        "a(x):4  p1(a):4 p2(p1):4 p3(p2)  u(a p3)  q1(u):4 q2(q1):4 q3(q2)  v(a q3)!",
    ),
    # What is read late is a view of a: both are made again, the view for nothing.
    "view that costs nothing": (
        (9, 2.0, 3),
        "a(x):4$2  v=view(a)  n(v)  p1(n):4 p2(p1):4 p3(p2)  q1(p3):4 q2(q1):4 q3(q2)  join(v q3)!",
    ),
    # So the costlier b gives way.
    "producer that must not run again": (
        (13, 5.0, 2),
        "drop(x):4?  b(x):4$5  n(drop b)  p1(n):4 p2(p1):4 p3(p2)  join(drop p3 n)  end(b join)!",
    ),
    "cheaper of two equal ones": (
        (13, 1.0, 2),
        "dear(x):4$5  cheap(x):4  n(dear cheap)  p1(n):4 p2(p1):4 p3(p2)  join(dear p3 n)  "
        "end(cheap join)!",
    ),
    # small is the better bargain, but does not suffice; big alone does.
    "pruned again": (
        (9, 2.5, 2),
        "small(x)$0.5  big(x):4$2.5  n(small big)  p1(n):4 p2(p1):4 p3(p2)  join(small big p3)!",
    ),
    # Running r again means running a again.
    "overwritten in place": (
        (9, 3.0, 3),
        "a(x):4$2  r=inplace(a):4  p1(r):4 p2(p1):4 p3(p2)  q1(p3):4 q2(q1):4 q3(q2)  join(r q3)!",
    ),
    # The cheap one needs too much workspace when it runs late.
    "workspace of a clone": (
        (13, 3.0, 2),
        "early(x):4+workspace=6  other(x):4$3  n(early other)  p1(n):4 p2(p1):4 p3(p2)  "
        "keep(p3):2  join(early other keep)!",
    ),
    # Dropout: never again, but there is a rule from mask and input.
    "rebuild rule": (
        (9, 1.5, 2),
        "a(x):4$9  drop(a):4?+mask:1  p1(drop):4 p2(p1):4 p3(p2)  q1(p3):4 q2(q1):4 q3(q2)  "
        "join(drop q3 mask)!  rebuilt(x mask):4$1.5+rebuilds=drop",
    ),
    # As the encoder puts views: right before their first reader.
    "view made late": (
        (9, 2.0, 2),
        "a(x):4$2  p1(a):4 p2(p1):4 p3(p2)  q1(p3):4 q2(q1):4 q3(q2)  v=view(a)  join(v q3)!",
    ),
    "overwritten by a late reader": (
        (9, 2.0, 2),
        "a(x):4$2  p1(a):4 p2(p1):4 p3(p2)  q1(p3):4 q2(q1):4 q3(q2)  r=inplace(a):4  join(r q3)!",
    ),
    # As memplan.planning.rebuild_rules does it: cast the mask, multiply, scale.
    "rebuild rule of three nodes": (
        (10, 1.5, 3),
        "a(x):4$9  drop(a):4?+mask:1  p1(drop):4 p2(p1):4 p3(p2)  q1(p3):4 q2(q1):4 q3(q2)  "
        "join(drop q3 mask)!  cast(mask):4$0.5+rebuilds=cast+behind=drop  "
        "kept(cast x):4$0.5+rebuilds=kept+behind=drop  scaled(kept):4$0.5+rebuilds=drop",
    ),
}
KNOWN = pytest.mark.parametrize(
    ("budget", "extra", "most", "case"),
    [
        (*numbers, case if isinstance(case, Case) else Case(case))
        for numbers, case in OPTIMA.values()
    ],
    ids=OPTIMA,
)


@KNOWN
def test_the_optimum_is_found(budget: int, extra: float, most: int, case: Case) -> None:
    assert case.peak(case.order) > budget
    assert case.cheapest(budget, most) == pytest.approx(extra)
    problem = case.problem(budget)
    decision = solve(problem, Deadline(SECONDS), FIXED)
    check(problem, decision, case)
    assert decision.feasible
    assert decision.extra_cost == pytest.approx(extra)
    # First runs keep the given order.
    dormant = {k for k, op in enumerate(case.ops) if op.rebuilds}
    first = [n for n in dict.fromkeys(decision.sequence.tolist()) if n not in dormant]
    assert first == case.order.tolist()


@KNOWN
def test_moving_nodes_is_never_worse_here(budget: int, extra: float, most: int, case: Case) -> None:
    problem = case.problem(budget)
    decision = solve(problem, Deadline(SECONDS), MOVING)
    check(problem, decision, case)
    assert decision.feasible
    assert decision.extra_cost <= extra + 1e-9


def test_a_node_that_is_only_early_is_moved_for_nothing() -> None:
    case = Case("late(x):4  p1(x):4 p2(p1):4 p3(p2)  join(late p3)!")
    # Running it again is no help: then nobody reads the first one, which is held to the end.
    assert not solve(case.problem(8), Deadline(SECONDS), FIXED).feasible
    moved = solve(case.problem(8), Deadline(SECONDS), MOVING)
    check(case.problem(8), moved, case)
    assert moved.feasible
    assert moved.extra_cost == 0


def test_nodes_that_must_stay_are_not_moved() -> None:
    case = Case("late(x):4  p1(x):4 p2(p1):4 p3(p2)  join(late p3)!")
    problem = case.problem(8)
    problem.movable[:] = False
    decision = solve(problem, Deadline(SECONDS), MOVING)
    assert not decision.feasible
    first = list(dict.fromkeys(decision.sequence.tolist()))
    assert first == problem.order.tolist()


def test_an_infeasible_budget_is_answered_with_the_lowest_peak() -> None:
    # join needs b, a (to make b) and q3 at once: 9 bytes, whatever is done.
    problem = NESTED.problem(8)
    assert NESTED.cheapest(8, 3) is None
    decision = solve(problem, Deadline(SECONDS), FIXED)
    assert not decision.feasible
    assert decision.peak == 9
    check(problem, decision, NESTED)


def test_the_budget_that_is_said_to_work_does() -> None:
    case = Case("""
        n0(x):7  n1(n0 n0):4!  n2(n1 n0):2?  n3=inplace(n2 n1):4$9
        n4=inplace(n3 n3):3$3+workspace=4  n5(n4):3  n7=view(n5)?  n8(n7 n0):3$8  n9=view(n8)
        n10(n9 n0):2$7+workspace=4  n11(n10 n4):5  n12(n11)""")
    options = SearchOptions(order=False, iterations=40)
    missed = solve(case.problem(21), Deadline(SECONDS), options)
    assert not missed.feasible
    assert missed.peak < case.peak(case.order)
    assert solve(case.problem(missed.peak), Deadline(SECONDS), options).feasible


def test_no_time_still_gives_the_greedy_answer() -> None:
    decision = solve(LONG_SKIP.problem(8), Deadline(0.0), SearchOptions(order=False))
    assert decision.feasible
    assert decision.extra_cost == pytest.approx(1.0)


def test_pruning_ends_where_time_is_over() -> None:
    (budget, least, _), text = OPTIMA["pruned again"]
    problem = (text if isinstance(text, Case) else Case(text)).problem(budget)
    options = SearchOptions(order=False, halt=np.ones(1, np.bool_))
    found = solve(problem, Deadline(SECONDS), options)
    assert found.feasible
    assert found.extra_cost > least
