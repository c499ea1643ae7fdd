"""Bottlenecks of a graph, as in the source, and the checkpoints chosen among them."""

import pytest

from helpers.checkpoints import SECONDS, labelled, plan
from helpers.problems import Case
from helpers.steps import chain, problem_of, random_step
from memplan.errors import UsageError
from memplan.solver.problem import Problem
from memplan.solver.strategies.bottlenecks import Flow, spaced
from memplan.solver.strategies.builtin import parse_strategy
from memplan.solver.strategies.keepset import step_of


def bottlenecks(case: Case, problem: Problem) -> str:
    """Names of the bottlenecks among all tensors."""
    flow, names = Flow(step_of(problem), 1024), list(case.tensors)
    return " ".join(names[t] for t in flow.bottlenecks(flow.tensors))


def chosen(case: Case, problem: Problem) -> str:
    """Names of the checkpoints that ``memory`` chooses."""
    names = list(case.tensors)
    return " ".join(names[t] for t in Flow(step_of(problem), 1024).checkpoints())


@pytest.mark.parametrize(
    ("count", "saved", "kept"),
    [
        # At most ceil(sqrt(saved)): all. Else every step-th from the step-th on.
        (3, 9, [0, 1, 2]),
        (3, 5, [0, 1, 2]),
        (4, 9, [2]),
        (9, 9, [3, 6]),
        (10, 9, [4, 8]),
        (16, 16, [4, 8, 12]),
        (2, 1, []),
    ],
)
def test_spacing_is_that_of_the_source(count: int, saved: int, kept: list[int]) -> None:
    assert spaced(list(range(count)), saved) == kept


def test_a_chain_keeps_every_third_of_nine() -> None:
    case = chain(9)
    problem = problem_of(case, 1)
    assert bottlenecks(case, problem) == "f1 f2 f3 f4 f5 f6 f7 f8 f9"
    assert chosen(case, problem) == "f4 f7"
    assert plan(case, problem, "memory") == (
        "f1 f2 f3 f4 f5 f6 f7 f8 f9 loss b9 b8 b7 f5 f6 b6 b5 b4 f1 f2 f3 b3 b2 b1"
    )


def test_what_a_skip_goes_around_is_no_bottleneck() -> None:
    case = Case("f1(x)  f2(f1)  a(f2 f1)  f3(a)  d(f3 a)  loss(d)  g(loss f1 f2 a f3 d)!")
    problem = problem_of(case, 9)
    assert bottlenecks(case, problem) == "f1 a d"
    # Five are saved: of three bottlenecks ceil(sqrt(5)) = 3 stay.
    assert chosen(case, problem) == "f1 a d"


def test_where_what_is_saved_has_too_few_bottlenecks_all_tensors_are_tried() -> None:
    case = Case("""
        r0(x)  g1(r0)  r1(g1 r0)  g2(r1)  r2(g2 r1)  g3(r2)  r3(g3 r2)  g4(r3)  r4(g4 r3)  loss(r4)
        g(loss g1 g2 g3 g4)!""")
    problem = problem_of(case, 9)
    assert bottlenecks(case, problem) == "r0 r1 r2 r3 r4"
    assert chosen(case, problem) == "r3"  # five of them, sqrt(4) wanted: every third, from r3


def test_two_branches_have_no_bottleneck() -> None:
    case = Case("a(x)  b(x)  c(a)  d(b)  loss(c d)  g(loss a b c d)!")
    with pytest.raises(UsageError) as caught:
        parse_strategy("memory").solve(problem_of(case, 9), SECONDS)
    assert caught.value.message == (
        "the forward part has no bottleneck: of 4 tensors, each has a way around it (a skip) or "
        "beside it (a branch)"
    )
    assert "list{names=a+b}" in caught.value.hint


def test_one_saved_tensor_leaves_no_choice() -> None:
    case = Case("f1(x)  f2(f1)  a(f2 f1)  loss(a)  g(loss f2)!")
    with pytest.raises(UsageError, match="of 2 bottlenecks in the forward part none is chosen"):
        parse_strategy("memory").solve(problem_of(case, 9), SECONDS)


def test_small_and_unfit_tensors_and_those_beside_the_way_do_not_count() -> None:
    # mask comes from the inputs alone, and goes everywhere; s is a statistic for backward only.
    case = Case("""
        mask(x)  f1(x mask)  f2(f1 mask)+s:1  cast(f2)  tiny(cast)  f3(tiny mask)  loss(f3 mask)
        g(loss f1 f2 s cast f3)!""")
    plain = problem_of(case, 9)
    assert bottlenecks(case, plain) == "mask"
    problem = labelled(case, plain, unfit="cast", aside="mask", small="tiny")
    flow, names = Flow(step_of(problem), 1024), list(case.tensors)
    assert [names[t] for t in flow.tensors] == ["f1", "f2", "f3"]
    assert bottlenecks(case, problem) == "f1 f2 f3"
    assert Flow(step_of(problem), 2000).tensors == []
    # What is beside the way stays: it does not run again.
    assert plan(case, problem, "memory").split().count("mask") == 1


def as_in_the_source(case: Case, problem: Problem) -> list[int]:
    """The loop of memory_saving_gradients.py over all tensors, on sets of operators."""
    assert problem.forward is not None
    order = [k for k in problem.order.tolist() if problem.forward[k]]
    reads = {k: {case.tensors[n] for n in case.ops[k].reads.split()} for k in order}
    writes = {k: {case.tensors[name] for name, _ in case._outputs(case.ops[k])} for k in order}
    every = set().union(*writes.values()) & set().union(*reads.values())

    def walk(start: int, forward: bool) -> set[int]:
        found, waiting = {start}, [start]
        while waiting:
            k = waiting.pop()
            for other in order:
                first, second = (k, other) if forward else (other, k)
                if other not in found and writes[first] & reads[second]:
                    found.add(other)
                    waiting.append(other)
        return found

    result = []
    for k in order:
        for t in sorted(writes[k] & every):
            b_inp = set().union(*(reads[j] for j in walk(k, False))) & every
            f_inp = set().union(*(reads[j] for j in walk(k, True) - {k})) & every
            if not b_inp & f_inp and len(b_inp) + len(f_inp) >= len(every):
                result.append(t)
    return result


def test_bottlenecks_of_random_steps_are_those_of_the_source() -> None:
    total = 0
    for seed in range(60):
        case, problem = random_step(seed, 12)
        flow = Flow(step_of(problem), 1024)
        wanted = as_in_the_source(case, problem)
        assert flow.bottlenecks(flow.tensors) == wanted
        total += len(wanted)
    assert total > 60
