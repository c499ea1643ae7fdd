"""Checkpoints at equal distances (Chen et al.) and the minimum cut of torch's partitioner, worked
by hand."""

import pytest

from helpers.problems import Case
from helpers.steps import chain, problem_of
from memplan.solver.strategies.keepset import step_of
from memplan.solver.strategies.mincut import MinCut, StashGraph
from memplan.solver.strategies.segments import Segments, _Forward

SECONDS = 30.0


def test_two_segments_of_a_chain() -> None:
    # Kept: f4, which crosses the cut, and the last segment f5..f8; f1..f3 run again before b3.
    # At b8: f4..f8, the loss and b8 itself are 7 bytes; without recomputation 10.
    case = chain(8)
    problem = problem_of(case, 7)
    assert case.peak(case.order) == 10
    decision = Segments(count=2).solve(problem, SECONDS).decision
    assert case.text(decision.sequence) == (
        "f1 f2 f3 f4 f5 f6 f7 f8 loss b8 b7 b6 b5 b4 f1 f2 f3 b3 b2 b1"
    )
    assert (decision.peak, decision.extra_cost, decision.feasible) == (7, 3.0, True)


@pytest.mark.parametrize(
    ("length", "budget", "extra", "peak"),
    [
        (9, 11, 0.0, 11),  # fits as it is
        (9, 8, 3.0, 8),  # two segments: f4 and f5..f9 stay
        (9, 7, 4.0, 7),  # three: f3, f6 and f7..f9 stay
        (9, 6, 4.0, 7),  # more cuts keep more: seven bytes are the least
    ],
)
def test_a_sweep_takes_the_cheapest_count_that_fits(
    length: int, budget: int, extra: float, peak: int
) -> None:
    case = chain(length)
    decision = Segments().solve(problem_of(case, budget), SECONDS).decision
    assert (decision.peak, decision.extra_cost, decision.feasible) == (peak, extra, peak <= budget)


def test_cuts_are_where_fewest_bytes_cross() -> None:
    # f4 is thin; the equal share would be behind f3.
    case = Case("""
        f1(x):4  f2(f1):4  f3(f2):4  f4(f3):1  f5(f4):4  f6(f5):4  loss(f6)
        b6(f6 loss)  b5(f5 b6)  b4(f4 b5)  b3(f3 b4)  b2(f2 b3)  b1(f1 b2)""")
    forward = _Forward(step_of(problem_of(case, 1)))
    assert forward.crossing.tolist() == [0, 4, 4, 4, 1, 4, 4]
    assert forward.cuts(2) == [4]
    assert {case.ops[root - 1].name for root in forward.kept([4])} == {"f4", "f5", "f6", "loss"}


def test_a_skip_across_a_cut_is_kept() -> None:
    case = Case("""
        s(x):2  f1(s)  f2(f1)  f3(f2)  f4(f3 s)  loss(f4)  b4(loss f3 s)  b3(b4 f2)  b2(b3 f1)
        b1(b2 s)!""")
    forward = _Forward(step_of(problem_of(case, 1)))
    assert case.tensors["s"] in forward.kept([2])
    assert case.tensors["f1"] in forward.kept([2])
    assert case.tensors["f1"] not in forward.kept([3])


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
