"""Checkpoints by kind, name and mark: hand-worked choices, and plans that hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.checkpoints import SECONDS, labelled, plan
from helpers.steps import chain, check, problem_of, random_step
from memplan.errors import UsageError
from memplan.solver.strategies.builtin import BUILT_IN, parse_strategy
from memplan.solver.strategies.checkpoints import Named

NAMES = ("speed", "memory", "list{names=addmm*}", "collection", "mirror", "segments", "min-cut")
BY_NAME = ("list{names=addmm*}", "collection")


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


@pytest.mark.parametrize("name", NAMES)
def test_they_need_to_know_the_forward_part(name: str) -> None:
    case = chain(4)
    unknown = replace(problem_of(case, 4), forward=None)
    with pytest.raises(UsageError, match="no forward nodes are known"):
        parse_strategy(name).solve(unknown, SECONDS)
    if name in BY_NAME:
        with pytest.raises(UsageError, match="no names and no marks"):
            parse_strategy(name).solve(problem_of(case, 4), SECONDS)


def test_plans_of_random_steps_are_what_they_say() -> None:
    made = dict.fromkeys(("speed", "memory", "list{names=f3+f9+f15}", "collection"), 0)
    for seed in range(40):
        case, problem = random_step(seed)
        problem = labelled(case, problem, marked="f5 f10 f20")
        for name in made:
            try:
                decision = parse_strategy(name).solve(problem, SECONDS).decision
            except UsageError:
                assert name in ("memory", "speed")
                continue
            check(problem, decision, case)
            made[name] += decision.peak < case.peak(case.order)
    assert min(made.values()) > 5, made


def test_they_make_one_plan_for_every_budget() -> None:
    case = chain(9)
    told: list[tuple[int, float]] = []
    for name in ("speed", "memory"):
        low, high = (problem_of(case, budget, intensive="f4 f7") for budget in (1, 99))
        below = parse_strategy(name).solve(low, SECONDS).decision
        above = (
            parse_strategy(name)
            .solve(high, SECONDS, lambda peak, extra: told.append((peak, extra)))
            .decision
        )
        assert below.sequence.tolist() == above.sequence.tolist()
        assert (below.feasible, above.feasible) == (False, True)
        assert told.pop() == (above.peak, above.extra_cost / 19)
        assert not told
    listed = {name for name, item in BUILT_IN.items() if item.ignores_budget}
    assert listed == {"speed", "memory", "list", "collection", "mirror"}


def test_what_was_asked_for_stays() -> None:
    case = chain(8)
    start = "f1 f2 f3 f4 f5 f6 f7 f8 loss b8 b7 b6 b5 b4 b3 f2 b2 b1"
    problem = problem_of(case, 9, intensive="f4", start=start, protected="f2")
    for name in ("speed", "memory", "list{names=f2}"):
        assert plan(case, labelled(case, problem), name).split().count("f2") >= 2
