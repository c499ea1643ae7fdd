"""Published planners that memplan's search has nothing to learn from, for comparison alone.

By rounds, the search ended with plans no worse without theirs as starts (on every graph of
``training_graphs``, at every budget, and on the public graphs), so they are no part of memplan.
"""

from __future__ import annotations

from typing import Any, cast

from benchmarks.plans.dtr import Dtr
from benchmarks.plans.knapsack import Knapsack
from memplan.solver.strategies.builtin import parse_strategy
from memplan.solver.strategies.spec import build, split_spec
from memplan.solver.strategy import Strategy

PEERS: dict[str, type[Any]] = {Dtr.name: Dtr, Knapsack.name: Knapsack}


def peer_or_strategy(text: str) -> Strategy:
    """``name{option=value,...}`` of one of these, or of a strategy that memplan lists.

    Raises:
        UsageError: there is no such strategy, or it has no such option.
    """
    spec = split_spec(text)
    if spec is None or spec.name not in PEERS:
        return parse_strategy(text)
    return cast(Strategy, build(PEERS[spec.name], spec, "strategy"))
