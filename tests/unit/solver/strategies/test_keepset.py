"""From a set of kept storages to a sequence: what comes back, where, and how often."""

from dataclasses import replace

import numpy as np
import pytest

from helpers.problems import Case
from helpers.steps import chain, problem_of
from memplan.errors import UsageError
from memplan.solver.links import boundary
from memplan.solver.strategies.keepset import step_of, without_unread


def test_what_is_dropped_comes_back_before_its_first_reader_only() -> None:
    case = chain(4)
    step = step_of(problem_of(case, 1))
    assert [case.ops[root - 1].name for root in step.stash] == ["f1", "f2", "f3", "f4", "loss"]
    sequence = step.sequence_for({case.tensors[name] for name in ["f2", "f4", "loss"]})
    assert case.text(sequence) == "f1 f2 f3 f4 loss b4 f3 b3 b2 f1 b1"


def test_what_nobody_reads_is_not_run() -> None:
    # late is read in the backward part alone: dropped, its first run would be held to the end.
    case = Case("late(x):4  f(x):4  loss(f)  b(loss f)  end(b late)!")
    problem = problem_of(case, 8)
    twice = case.sequence("late f loss b late end")
    assert case.text(without_unread(problem, twice)) == "f loss b late end"
    problem.movable[case.place["late"]] = False
    assert without_unread(problem, twice).tolist() == twice.tolist()
    problem.movable[:] = True
    problem.protected[case.place["late"]] = True
    assert without_unread(problem, twice).tolist() == twice.tolist()


def test_of_several_useless_runs_one_stays() -> None:
    case = Case("a(x)  loss(x)  b(loss)!")
    sequence = case.sequence("a a a loss b")
    assert case.text(without_unread(problem_of(case, 9), sequence)) == "a loss b"


def test_a_step_without_forward_nodes_has_no_boundary() -> None:
    with pytest.raises(UsageError):
        boundary(replace(problem_of(chain(4), 4), forward=np.zeros(9, np.bool_)))


def test_a_view_that_stands_late_does_not_move_the_boundary() -> None:
    case = Case("a(x):4  loss(a)  b(loss)  v=view(a)  end(v b)!")
    problem = replace(
        case.problem(9), forward=np.asarray([True, True, False, True, False]), intensive=None
    )
    assert boundary(problem) == 2
    step = step_of(problem)
    assert step.stash == [case.tensors["a"], case.tensors["loss"]]
    assert case.text(step.sequence_for(set())) == "a loss a loss b v end"


def test_a_rebuild_rule_stands_in_for_what_must_not_run_again() -> None:
    case = Case("""
        a(x):4  drop(a):4?+mask:1  loss(drop)  b(loss drop mask)  end(b a)!
        cast(mask):4$0.5+rebuilds=cast+behind=drop  again(cast a):4$0.5+rebuilds=drop""")
    step = step_of(problem_of(case, 1))
    kept = {case.tensors["a"], case.tensors["loss"]}
    assert case.text(step.sequence_for(kept)) == "a drop loss cast again b end"
