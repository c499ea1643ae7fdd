"""Ways to search small abstract problems."""

from __future__ import annotations

import pytest

from helpers.problems import Case, Op
from memplan.solver.problem import Decision, Problem


def bridge(name: str, source: str, nbytes: int = 4) -> list[Op]:
    """Two tensors of ``nbytes`` one after the other, reduced to one byte: ``name``3."""
    return [
        Op(f"{name}1", source, nbytes),
        Op(f"{name}2", f"{name}1", nbytes),
        Op(f"{name}3", f"{name}2"),
    ]


LONG_SKIP = Case(
    Op("t0", "x", 4),
    *(Op(f"t{k}", f"t{k - 1}", 4) for k in range(1, 8)),
    Op("s", "t7"),
    Op("join", "s t0", output=True),
    resident="x",
)


NESTED = Case(  # b can only be made again from a, which is gone by then
    Op("a", "x", 4, 2.0),
    Op("b", "a", 4),
    *bridge("p", "b"),
    *bridge("q", "p3"),
    Op("join", "q3 b", output=True),
    resident="x",
)


def check(problem: Problem, decision: Decision, case: Case) -> None:
    """What a decision says of itself is so, and every node runs after what it reads."""
    assert decision.peak == case.peak(decision.sequence)
    assert decision.feasible == (decision.peak <= problem.budget)
    cost = case.arrays.cost[decision.sequence].sum() - problem.base_cost
    assert decision.extra_cost == pytest.approx(cost)
    made = set(range(case.resident))
    for node in decision.sequence:
        span = slice(case.arrays.read_start[node], case.arrays.read_start[node + 1])
        assert set(case.arrays.reads[span].tolist()) <= made
        span = slice(case.arrays.write_start[node], case.arrays.write_start[node + 1])
        made.update(case.arrays.writes[span].tolist())
    assert set(problem.order.tolist()) <= set(decision.sequence.tolist())
