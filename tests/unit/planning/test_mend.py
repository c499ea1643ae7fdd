"""A plan at hand, carried over to a problem that differs a little; and what nobody reads."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.graphs import TUNED, open_text
from memplan.planning.mend import Mend, carried_over
from memplan.planning.planner import PlanRequest, Prepared, make_plan, prepare, without_unread
from memplan.simulate.timeline import simulate
from memplan.solver.evaluate import IMPOSSIBLE, decide
from memplan.solver.problem import Problem
from memplan.solver.strategies.builtin import Search, parse_strategy

CHAIN = """
g (float[256] x) => (float y)
{
    [a] a = Exp(x) [b] b = Exp(a) [c] c = Sqrt(b) [d] d = Sin(c) [e] e = Cos(d)
    [f] f = Mul(e, d) [g] g = Mul(f, c) [h] h = Mul(g, b) [i] i = Mul(h, a)
    [y] y = ReduceSum<keepdims = 0>(i)
}"""
GREEDY = parse_strategy("greedy")


def a_problem(share: float) -> tuple[Prepared, Problem]:
    """The chain with a budget, as a share of its peak."""
    model = open_text(CHAIN)
    budget = int(share * simulate(model.graph, TUNED).peak_with_workspace_bytes)
    request = PlanRequest(model.graph, TUNED, budget, lambda g: [1.0] * len(g.nodes))
    prepared = prepare(request)
    return prepared, prepared.encoded.problem(budget - prepared.resident_bytes)


def test_a_plan_is_its_own_when_it_is_carried_over() -> None:
    prepared, problem = a_problem(0.8)
    plan = make_plan(prepared, GREEDY, 5.0)
    carried = carried_over(plan.sequence, prepared.extended.graph, problem)
    assert carried.tolist() == list(plan.sequence)


@pytest.mark.parametrize("gone", ["a", "c", "f", "y"])
def test_what_the_plan_lacks_runs_before_it_is_needed(gone: str) -> None:
    prepared, problem = a_problem(0.8)
    nodes = prepared.extended.graph.nodes
    kept = [n for n in make_plan(prepared, GREEDY, 5.0).sequence if nodes[n].name != gone]
    carried = carried_over(kept, prepared.extended.graph, problem)
    assert set(carried.tolist()) == set(problem.order.tolist())
    assert decide(problem, carried).peak < IMPOSSIBLE


def test_a_plan_is_mended_for_less() -> None:
    """From the plan for 80% to one for 70%, which it does not keep."""
    prepared, _ = a_problem(0.8)
    at_hand = make_plan(prepared, GREEDY, 5.0).sequence
    prepared, problem = a_problem(0.7)
    start = carried_over(at_hand, prepared.extended.graph, problem)
    assert not decide(problem, start).feasible
    found = Mend(Search(iterations=5), start).solve(problem, 60.0)
    assert found.decision.feasible
    assert found.bound_seconds == 0


def test_recomputations_that_nobody_reads_are_taken_out() -> None:
    """``b`` once more for nobody goes; ``a`` once more for ``i`` stays."""
    prepared, problem = a_problem(1.0)
    names = {node.name: node.id for node in prepared.extended.graph.nodes}
    order = problem.order.tolist()
    at = order.index(names["i"])
    idle = [*order[:at], names["b"], *order[at:]]
    assert without_unread(problem, decide(problem, np.asarray(idle))).sequence.tolist() == order
    read = [*order[:at], names["a"], *order[at:]]
    assert without_unread(problem, decide(problem, np.asarray(read))).sequence.tolist() == read
