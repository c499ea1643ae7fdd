"""``analyze`` takes linear time: counted in calls of Python functions, which no load disturbs."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from helpers.graphs import REUSING, TUNED, open_text
from helpers.models import load_benchmark
from memplan.api.analysis import analyze_open
from memplan.simulate.session import SessionKind

chain = load_benchmark("plans.scale").chain


def calls(nodes: int, session: SessionKind) -> tuple[int, int]:
    """Nodes, and calls (resumed generators among them) that an analysis of such a chain makes."""
    model = open_text(chain(nodes))
    count = 0

    def tell(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(tell)
    try:
        again = open_text(model.prepared.proto)
        analyze_open(again, session).as_json()
    finally:
        sys.setprofile(before)
    return len(model.graph.nodes), count


@pytest.mark.parametrize("session", [TUNED, REUSING], ids=lambda kind: kind.name)
def test_four_times_the_nodes_are_four_times_the_calls(session: SessionKind) -> None:
    calls(100, session)  # what is imported and cached on first use is not counted
    few, once = calls(250, session)
    many, more = calls(1000, session)
    assert more / once < 1.1 * many / few
