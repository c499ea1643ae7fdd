"""The planner's evaluator: bytes of sequences by hand, on abstract nodes."""

import pytest

from helpers.problems import Case
from memplan.solver.evaluate import evaluate

CHAIN = Case("a(x)  b(a)  c(b)  d(c a)  out(d)!")
# What is promised: a problem, and sequences with their bytes step by step.
TOTALS: dict[str, tuple[Case, dict[str, list[int]]]] = {
    # At d: c, a and d. The resident x is not counted.
    "without recomputation": (CHAIN, {"a b c d out": [1, 2, 3, 3, 2]}),
    # The first a dies behind b; d reads the second.
    "a recomputed tensor dies between": (CHAIN, {"a b c a d out": [1, 2, 2, 2, 3, 2]}),
    # The second y is a tensor like any other, and does not release the first.
    "only the first value of a graph output is held": (
        Case("a()  y(a)!  b(y)  c(b)  d(c y)  e(d)"),
        {"a y b c d e": [1, 2, 2, 3, 3, 3], "a y b c a y d e": [1, 2, 2, 3, 3, 4, 4, 3]},
    ),
    # Made late, it keeps its base all the same; a new view of a new base lets the old one go.
    "a view keeps its base and costs nothing": (
        Case("a()  v=view(a)  b(a)  c(b v)  d(c)"),
        {
            "a v b c d": [1, 1, 2, 3, 2],
            "a b v c d": [1, 2, 2, 3, 2],
            "a b a v c d": [1, 2, 2, 2, 3, 2],
        },
    ),
    # Run again, it is a view.
    "a view that is a graph output is a copy": (
        Case("a()  v=view(a):1$1!  b(a)  c(b)"),
        {"a v b c": [1, 2, 3, 3], "a v b v c": [1, 2, 3, 3, 3]},
    ),
    "a view of a resident tensor takes nothing": (
        Case("v=view(x):1$1  r=inplace(v)  y(r)"),
        {"v r y": [0, 1, 2]},
    ),
    "in place where the last reader is": (
        Case("a()  r=inplace(a)  b(r)  c(b)"),
        {"a r b c": [1, 1, 2, 2]},
    ),
    # Its own clone in front of the later one: in place again.
    "not in place before another reader": (
        Case("a()  r=inplace(a)  b(r a)  c(b)"),
        {"a r b c": [1, 2, 3, 2], "a r a b c": [1, 1, 2, 3, 2]},
    ),
    "in place needs equal dimensions": (Case("a():2  r=inplace(a)  b(r)"), {"a r b": [2, 3, 2]}),
    "what reads twice is never in place": (Case("a()  r=inplace(a a)  b(r)"), {"a r b": [1, 2, 2]}),
    "a graph output is not overwritten": (Case("y()!  r=inplace(y)  b(r)"), {"y r b": [1, 2, 3]}),
    "nor made in place": (Case("a()  y=inplace(a)!  b(y)"), {"a y b": [1, 2, 2]}),
    "an output that nobody reads is held to the end": (
        Case("a()+extra:5  b(a)  c(b)  d(c)!"),
        {"a b c d": [6, 7, 7, 7]},
    ),
    "or there while its node runs": (
        Case("a()+extra:5+fleeting  b(a)  c(b)  d(c)!"),
        {"a b c d": [6, 2, 2, 2]},
    ),
    "or not made at all": (
        Case("a()+extra:5+droppable  b(a)  c(b)  d(c)!"),
        {"a b c d": [1, 2, 2, 2]},
    ),
    # The first a makes only what b reads, the second only what c reads, and a itself unread.
    "an optional output is made where it is read": (
        Case("a()+extra:5+droppable  b(a)  c(b extra)  d(c)"),
        {"a b c d": [6, 7, 7, 2], "a b a c d": [1, 2, 7, 8, 3]},
    ),
    "an optional output that is a graph output is made once": (
        Case("a()+extra:5+output_too=extra+droppable  b(a)  c(b a)"),
        {"a b c": [6, 7, 8], "a b a c": [6, 7, 7, 8]},
    ),
    "a rebuild rule makes the tensor that it stands for": (
        Case("""
            a()  drop(a)?+mask:1  b(drop)  c(b)  grad(c drop mask)!
            rebuilt(a mask)+rebuilds=drop"""),
        {"a drop b c grad": [1, 3, 3, 4, 4], "a drop b c rebuilt grad": [1, 3, 4, 4, 4, 4]},
    ),
    "nothing": (CHAIN, {"": []}),
}


@pytest.mark.parametrize("name", TOTALS)
def test_bytes_at_every_step(name: str) -> None:
    case, sequences = TOTALS[name]
    assert {text: case.totals(text) for text in sequences} == sequences


def test_readers_take_the_latest_value() -> None:
    profile = evaluate(CHAIN.arrays, CHAIN.sequence("a b c a d out"))
    # Values in order of production: a b c a' d out; d reads c and a'.
    assert profile.slot_value.tolist() == [-1, 0, 1, -1, 2, 3, 4]
    assert profile.value_reads.tolist() == [1, 1, 1, 1, 1, 0]


def test_what_nobody_reads_any_more_is_held_to_the_end() -> None:
    # Both readers of the second a come first: a third one is unread.
    assert CHAIN.totals("a b c d a out") == [1, 2, 3, 3, 2, 3]
    profile = evaluate(CHAIN.arrays, CHAIN.sequence("a b c d a out"))
    assert profile.held.tolist() == [0, 0, 0, 0, 1, 1]
    assert profile.death.tolist() == [4, 3, 4, 6, 6, 6]


def test_a_value_overwritten_in_place_is_lost_at_that_position() -> None:
    case = Case("a()  v=view(a):1$1  r=inplace(v)  b(r)")
    profile = evaluate(case.arrays, case.sequence("a v r b"))
    # a and its view are overwritten at 2; r lives to the end of what it is.
    assert profile.value_lost.tolist() == [2, 2, 4, 4]
    assert profile.value_storage.tolist() == [0, 0, 0, 1]


def test_workspace_and_bodies_count_at_their_own_step() -> None:
    case = Case("a()  b(a)+workspace=10  c(b)+inside=5  d(c)")
    profile = evaluate(case.arrays, case.sequence("a b c d"))
    assert profile.dynamic.tolist() == [1, 2, 7, 2]
    assert profile.total.tolist() == [1, 12, 7, 2]
