"""How hard every plan of a sweep is looked for: in rounds, so that it is the same everywhere."""

from __future__ import annotations

from dataclasses import replace

from memplan.api.rewrite.goal import RewriteOptions, strategy_for
from memplan.solver.strategies.builtin import Search

DEFAULT_EFFORT = 50
"""Rounds of each search: some seconds for a graph of a thousand nodes."""


def with_effort(
    options: RewriteOptions, effort: int, seed: int, time_limit: float | None
) -> RewriteOptions:
    """Options for one plan: ``effort`` in rounds, or ``time_limit`` in seconds instead of it.

    Of strategies other than the search, which have no rounds, none is stopped by the clock either.

    Raises:
        UsageError: there is no such strategy.
    """
    if time_limit is not None:
        return replace(options, time_limit=time_limit)
    strategy = strategy_for(options)
    own = isinstance(strategy, Search) and strategy.iterations
    seeded = isinstance(strategy, Search) and not strategy.seed
    return replace(options, effort=own or effort, seed=seed if seeded else None)
