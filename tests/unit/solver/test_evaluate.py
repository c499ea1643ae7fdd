"""The planner's evaluator: bytes of sequences by hand, on abstract nodes."""

from __future__ import annotations

import pytest

from helpers.problems import Case, Op
from memplan.solver.evaluate import evaluate

CHAIN = Case(
    Op("a", "x"),
    Op("b", "a"),
    Op("c", "b"),
    Op("d", "c a"),
    Op("out", "d", output=True),
    resident="x",
)


def test_the_order_without_recomputation() -> None:
    # At d: c, a and d. The resident x is not counted.
    assert CHAIN.totals("a b c d out") == [1, 2, 3, 3, 2]


def test_a_recomputed_tensor_dies_between() -> None:
    # The first a dies behind b; d reads the second.
    assert CHAIN.totals("a b c a d out") == [1, 2, 2, 2, 3, 2]


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


def test_only_the_first_value_of_a_graph_output_is_held() -> None:
    case = Case(
        Op("a"), Op("y", "a", output=True), Op("b", "y"), Op("c", "b"), Op("d", "c y"), Op("e", "d")
    )
    assert case.totals("a y b c d e") == [1, 2, 2, 3, 3, 3]
    # The second y is a tensor like any other, and does not release the first.
    assert case.totals("a y b c a y d e") == [1, 2, 2, 3, 3, 4, 4, 3]


def test_a_view_keeps_its_base_and_costs_nothing() -> None:
    case = Case(Op("a"), Op("v", "a", 0, 0.0, "view"), Op("b", "a"), Op("c", "b v"), Op("d", "c"))
    assert case.totals("a v b c d") == [1, 1, 2, 3, 2]
    # A view made late keeps its base all the same.
    assert case.totals("a b v c d") == [1, 2, 2, 3, 2]
    # A new view of a new base lets the old one go.
    assert case.totals("a b a v c d") == [1, 2, 2, 2, 3, 2]


def test_a_view_that_is_a_graph_output_is_a_copy() -> None:
    case = Case(Op("a"), Op("v", "a", like="view", output=True), Op("b", "a"), Op("c", "b"))
    assert case.totals("a v b c") == [1, 2, 3, 3]
    # Run again, it is a view.
    assert case.totals("a v b v c") == [1, 2, 3, 3, 3]


def test_a_view_of_a_resident_tensor_takes_nothing() -> None:
    case = Case(Op("v", "x", like="view"), Op("r", "v", like="inplace"), Op("y", "r"), resident="x")
    assert case.totals("v r y") == [0, 1, 2]


def test_in_place_where_the_last_reader_is() -> None:
    case = Case(Op("a"), Op("r", "a", like="inplace"), Op("b", "r"), Op("c", "b"))
    assert case.totals("a r b c") == [1, 1, 2, 2]
    # Another reader later: not in place. Its own clone in front of that one: in place again.
    later = Case(Op("a"), Op("r", "a", like="inplace"), Op("b", "r a"), Op("c", "b"))
    assert later.totals("a r b c") == [1, 2, 3, 2]
    assert later.totals("a r a b c") == [1, 1, 2, 3, 2]


def test_in_place_needs_equal_dimensions() -> None:
    case = Case(Op("a", nbytes=2), Op("r", "a", 1, like="inplace"), Op("b", "r"))
    assert case.totals("a r b") == [2, 3, 2]


def test_a_value_overwritten_in_place_is_lost_at_that_position() -> None:
    case = Case(Op("a"), Op("v", "a", like="view"), Op("r", "v", like="inplace"), Op("b", "r"))
    profile = evaluate(case.arrays, case.sequence("a v r b"))
    # a and its view are overwritten at 2; r lives to the end of what it is.
    assert profile.value_lost.tolist() == [2, 2, 4, 4]
    assert profile.value_storage.tolist() == [0, 0, 0, 1]


def test_a_node_that_reads_twice_is_never_in_place() -> None:
    case = Case(Op("a"), Op("r", "a a", like="inplace"), Op("b", "r"))
    assert case.totals("a r b") == [1, 2, 2]


def test_a_graph_output_is_neither_overwritten_nor_made_in_place() -> None:
    case = Case(Op("y", output=True), Op("r", "y", like="inplace"), Op("b", "r"))
    assert case.totals("y r b") == [1, 2, 3]
    case = Case(Op("a"), Op("y", "a", like="inplace", output=True), Op("b", "y"))
    assert case.totals("a y b") == [1, 2, 2]


@pytest.mark.parametrize(
    ("droppable", "fleeting", "wanted"),
    [
        (False, False, [6, 7, 7, 7]),  # held to the end
        (False, True, [6, 2, 2, 2]),  # there while its node runs
        (True, False, [1, 2, 2, 2]),  # not made at all
    ],
)
def test_an_output_that_nobody_reads(droppable: bool, fleeting: bool, wanted: list[int]) -> None:
    case = Case(
        Op("a", more=(("extra", 5),), droppable=droppable, fleeting=fleeting),
        Op("b", "a"),
        Op("c", "b"),
        Op("d", "c", output=True),
    )
    assert case.totals("a b c d") == wanted


def test_an_optional_output_is_made_where_it_is_read() -> None:
    case = Case(
        Op("a", more=(("extra", 5),), droppable=True),
        Op("b", "a"),
        Op("c", "b extra"),
        Op("d", "c"),
    )
    assert case.totals("a b c d") == [6, 7, 7, 2]
    # The first a makes only what b reads, the second only what c reads, and a itself unread.
    assert case.totals("a b a c d") == [1, 2, 7, 8, 3]


def test_an_optional_output_that_is_a_graph_output_is_made_once() -> None:
    case = Case(
        Op("a", more=(("extra", 5),), droppable=True, output_too="extra"),
        Op("b", "a"),
        Op("c", "b a"),
    )
    assert case.totals("a b c") == [6, 7, 8]
    assert case.totals("a b a c") == [6, 7, 7, 8]


def test_workspace_and_bodies_count_at_their_own_step() -> None:
    case = Case(Op("a"), Op("b", "a", workspace=10), Op("c", "b", inside=5), Op("d", "c"))
    profile = evaluate(case.arrays, case.sequence("a b c d"))
    assert profile.dynamic.tolist() == [1, 2, 7, 2]
    assert profile.total.tolist() == [1, 12, 7, 2]


def test_a_rebuild_rule_makes_the_tensor_that_it_stands_for() -> None:
    case = Case(
        Op("a"),
        Op("drop", "a", again=False, more=(("mask", 1),)),
        Op("b", "drop"),
        Op("c", "b"),
        Op("grad", "c drop mask", output=True),
        Op("rebuilt", "a mask", rebuilds="drop"),
    )
    assert case.totals("a drop b c grad") == [1, 3, 3, 4, 4]
    assert case.totals("a drop b c rebuilt grad") == [1, 3, 4, 4, 4, 4]


def test_an_empty_sequence() -> None:
    profile = evaluate(CHAIN.arrays, CHAIN.sequence(""))
    assert profile.total.tolist() == []
    assert profile.birth.tolist() == []
