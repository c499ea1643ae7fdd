"""A published planner that memplan's search has nothing to learn from, for comparison alone.

By rounds, the search ended with plans no worse without its as starts (on every graph of
``training_graphs``, at every budget, and on the public graphs), so it is no part of memplan.
"""

from __future__ import annotations

from typing import cast

from benchmarks.plans.knapsack import Knapsack
from memplan.solver.strategies.builtin import parse_strategy
from memplan.solver.strategies.spec import build, split_spec
from memplan.solver.strategy import Strategy


def peer_or_strategy(text: str) -> Strategy:
    """``knapsack{option=value,...}``, or one of a strategy that memplan lists.

    Raises:
        UsageError: there is no such strategy, or it has no such option.
    """
    spec = split_spec(text)
    if spec is None or spec.name != Knapsack.name:
        return parse_strategy(text)
    return cast(Strategy, build(Knapsack, spec, "strategy"))
