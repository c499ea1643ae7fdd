"""Checkpoints by kind, name and mark: hand-worked choices, and plans that hold."""

from dataclasses import replace

import pytest

from helpers.checkpoints import SECONDS, labelled, plan
from helpers.steps import chain, problem_of
from memplan.errors import UsageError
from memplan.solver.strategies.builtin import parse_strategy
from memplan.solver.strategies.checkpoints import Named


def test_products_stay_and_the_rest_runs_again() -> None:
    # Before b4: f4 again, from f3. First runs that then serve nobody are left out.
    case = chain(4)
    problem = problem_of(case, 1, intensive="f1 f3")
    assert plan(case, problem, "speed") == "f1 f2 f3 f4 loss b4 b3 f2 b2 b1"


def test_products_beside_the_way_do_not_count() -> None:
    case = chain(4)
    problem = labelled(case, problem_of(case, 9, intensive="f1 b3"), aside="f1")
    with pytest.raises(UsageError, match="no convolution and no matrix product"):
        parse_strategy("speed").solve(problem, SECONDS)
    with pytest.raises(UsageError, match="no convolution and no matrix product"):
        parse_strategy("speed").solve(replace(problem, intensive=None), SECONDS)


def test_named_tensors_stay() -> None:
    case = chain(4)
    problem = labelled(case, problem_of(case, 1))
    assert plan(case, problem, "list{names=f2+f4}") == "f1 f2 f3 f4 loss b4 f3 b3 b2 f1 b1"
    assert plan(case, problem, "list{names= f2 + f4 }") == plan(case, problem, "list{names=f[24]}")


@pytest.mark.parametrize(
    ("names", "message", "hint"),
    [
        ("", "strategy 'list' needs names", "list{names=a+b}"),
        ("f2+f22", "the forward part makes no tensor 'f22'", "near matches: f2"),
        ("O", "the forward part makes no tensor 'O'", "near matches: loss"),
        ("what?", "the forward part makes no tensor 'what?'", "it makes, for example, f1, f2, f3"),
        ("b2", "'b2' is not made in the forward part", "never recomputed"),
        ("x", "'x' is not made in the forward part", "never recomputed"),
    ],
)
def test_wrong_names_are_explained(names: str, message: str, hint: str) -> None:
    case = chain(4)
    with pytest.raises(UsageError) as caught:
        Named(names).solve(labelled(case, problem_of(case, 9)), SECONDS)
    assert caught.value.message.startswith(message)
    assert hint in caught.value.hint


def test_marked_tensors_stay() -> None:
    case = chain(4)
    problem = labelled(case, problem_of(case, 1), marked="f2 f4 b3 x")
    assert plan(case, problem, "collection") == plan(case, problem, "list{names=f2+f4}")
    with pytest.raises(UsageError, match="no tensor of the forward part is marked") as caught:
        parse_strategy("collection").solve(labelled(case, problem, marked="b3"), SECONDS)
    assert "memplan.checkpoint = true" in caught.value.hint


@pytest.mark.parametrize("name", ["list{names=addmm*}", "collection"])
def test_names_and_marks_must_be_known(name: str) -> None:
    with pytest.raises(UsageError, match="no names and no marks"):
        parse_strategy(name).solve(problem_of(chain(4), 4), SECONDS)


def test_they_make_one_plan_for_every_budget() -> None:
    case = chain(9)
    for name in ("speed", "memory"):
        low, high = (problem_of(case, budget, intensive="f4 f7") for budget in (1, 99))
        below, above = (parse_strategy(name).solve(p, SECONDS).decision for p in (low, high))
        assert below.sequence.tolist() == above.sequence.tolist()
        assert (below.feasible, above.feasible) == (False, True)
