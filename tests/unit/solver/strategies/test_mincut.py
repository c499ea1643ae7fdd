"""The minimum cut of torch's partitioner, worked by hand."""

from __future__ import annotations

import pytest

from helpers.problems import Case
from helpers.steps import problem_of
from memplan.solver.strategies.keepset import step_of
from memplan.solver.strategies.mincut import MinCut, StashGraph

SECONDS = 30.0
# m is a matrix product, r its activation, e a wide result: backward reads r and e.
WIDE = Case("""
    m(x):400$9  r(m):400  e(r):1000  loss(e):0!  ge(loss e):1000  gr(ge r):400!""")


@pytest.mark.parametrize(
    ("ban", "kept", "plan"),
    [
        (1, "r", "m r e loss e ge gr"),
        # Nothing need be kept: all of it can be made from the input again.
        (0, "", "m r e loss m r e ge gr"),
    ],
)
def test_the_cut_of_fewest_bytes(ban: int, kept: str, plan: str) -> None:
    problem = problem_of(WIDE, 1, intensive="m")
    graph = StashGraph(step_of(problem))
    assert graph.expensive() == {WIDE.place["m"]}
    banned = graph.expensive() if ban else set[int]()
    cut = graph.cut(banned, lambda: False)
    assert cut is not None
    # The loss has no bytes.
    assert cut - {WIDE.tensors["loss"]} == {WIDE.tensors[name] for name in kept.split()}
    decision = MinCut(ban=ban).solve(problem, SECONDS).decision
    assert WIDE.text(decision.sequence) == plan
    assert not decision.feasible


def test_a_reduction_is_not_run_again() -> None:
    case = Case("f(x):100  mean(f):10  n(f mean):100  loss(n):25  b(loss n mean):100!")
    assert StashGraph(step_of(problem_of(case, 1))).expensive() == {case.place["mean"]}


def test_what_cannot_run_again_is_cut_behind() -> None:
    case = Case("noise(x):100?  f(noise):300  loss(f):0  b(loss f):300!")
    cut = StashGraph(step_of(problem_of(case, 1))).cut(set(), lambda: False)
    assert cut is not None
    assert case.tensors["noise"] in cut
    assert case.tensors["f"] not in cut
