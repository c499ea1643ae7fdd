"""How hard every plan of a sweep is looked for: in rounds, so that it is the same everywhere."""

from __future__ import annotations

from dataclasses import replace

from memplan.api.rewrite.goal import RewriteOptions
from memplan.strategies.builtin import Search, parse_strategy

DEFAULT_EFFORT = 50
"""Rounds of each search: a second or two for a graph of some hundred nodes."""
# Rounds end a plan; the clock is not to.
_NO_LIMIT_SECONDS = 86_400.0


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
    strategy = parse_strategy(options.strategy)
    text = options.strategy
    if isinstance(strategy, Search) and not strategy.iterations:
        text = (
            f"{Search.name}{{order={strategy.order},seed={strategy.seed or seed},"
            f"iterations={effort},certify={strategy.certify}}}"
        )
    return replace(options, strategy=text, time_limit=_NO_LIMIT_SECONDS)
