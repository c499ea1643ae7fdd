"""Nodes that the runtime runs right behind what they read."""

from __future__ import annotations

import pytest

from helpers.problems import Case, Op
from memplan.solver.order.local import settle


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("a s b c d", "a s b c d"),
        ("a b c s d", "a s b c d"),
        ("a b a s c d", "a s b a c d"),
        ("a b c e d s", "e a s b c d"),
    ],
)
def test_eager_nodes_are_settled_behind_what_they_read(given: str, wanted: str) -> None:
    case = Case(
        Op("a", "x"),
        Op("s", "a", eager=True),
        Op("e", "x", eager=True),
        Op("b", "a"),
        Op("c", "b"),
        Op("d", "c s", output=True),
        resident="x",
    )
    assert case.text(settle(case.arrays, case.sequence(given))) == wanted


def test_an_eager_node_that_reads_another_follows_it() -> None:
    case = Case(
        Op("a", "x"),
        Op("s", "a", eager=True),
        Op("size", "s", eager=True),
        Op("b", "x"),
        Op("c", "a size b", output=True),
        resident="x",
    )
    assert case.text(settle(case.arrays, case.sequence("a b s size c"))) == "a s size b c"
