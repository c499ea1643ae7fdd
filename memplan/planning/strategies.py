"""Strategies by name: frozen dataclasses whose fields are their options.

``--strategy segments{count=4}`` makes ``Segments(count=4)``. An option is a whole number or, where
its default is a word, one of the words that the class lists in ``words``. A strategy only decides;
the planner simulates and verifies every decision on one path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from memplan.errors import UsageError
from memplan.planning.outcome import Outcome, Progress, Strategy
from memplan.planning.peers.dtr import Dtr
from memplan.planning.peers.knapsack import Knapsack
from memplan.planning.peers.mincut import MinCut
from memplan.planning.peers.segments import Segments
from memplan.planning.problem import Decision, Problem


@dataclass(frozen=True, slots=True)
class Search:
    """Node order and recomputation searched together: greedy, then large-neighbourhood search.

    ``order``: 1 to move nodes, 0 to keep the file's order. ``iterations``: stop after so many
    rounds instead of at the time limit (0: the time limit); the plan then depends on ``seed``
    alone. ``certify``: 1 to look for a lower bound on the extra time beside the search.
    """

    name: ClassVar[str] = "search"
    summary: ClassVar[str] = "node order and recomputation searched together, until time is over"
    order: int = 1
    seed: int = 0
    iterations: int = 0
    certify: int = 1

    def solve(
        self, problem: Problem, time_limit: float, progress: Progress | None = None
    ) -> Outcome:
        """See :func:`memplan.planning.portfolio.solve_portfolio`."""
        from memplan.planning.portfolio import PortfolioOptions, solve_portfolio

        options = PortfolioOptions(bool(self.order), self.seed, self.iterations, bool(self.certify))
        decision, bound = solve_portfolio(problem, time_limit, options, progress)
        return Outcome(decision, bound.seconds, bound.kind)


@dataclass(frozen=True, slots=True)
class Greedy:
    """Greedy eviction with late recomputation and pruning, in the file's order; no search."""

    name: ClassVar[str] = "greedy"
    summary: ClassVar[str] = "evict what saves most per second of recomputation, then prune"

    def solve(
        self, problem: Problem, time_limit: float, progress: Progress | None = None
    ) -> Outcome:
        """See :func:`memplan.planning.search.solve`."""
        from memplan.planning.search import SearchOptions, solve

        options = SearchOptions(order=False, refine=False)
        return Outcome(solve(problem, time_limit, options, progress))


@dataclass(frozen=True, slots=True)
class Keep:
    """No recomputation: the graph as it is, in its own order."""

    name: ClassVar[str] = "none"
    summary: ClassVar[str] = "recompute nothing"

    def solve(
        self, problem: Problem, time_limit: float, progress: Progress | None = None
    ) -> Outcome:
        """The start sequence, feasible if it happens to fit."""
        from memplan.planning.evaluate import evaluate

        extra = float(problem.arrays.cost[problem.start].sum()) - problem.base_cost
        peak = int(evaluate(problem.arrays, problem.start).total.max(initial=0))
        return Outcome(Decision(problem.start, peak, extra, peak <= problem.budget))


Known = (
    type[Search] | type[Greedy] | type[Keep] | type[Segments] | type[Dtr] | type[Knapsack]
    | type[MinCut]
)  # fmt: skip
STRATEGIES: dict[str, Known] = {
    strategy.name: strategy for strategy in (Search, Greedy, Keep, Segments, Dtr, Knapsack, MinCut)
}
DEFAULT = Search.name
_SPEC = re.compile(r"^(?P<name>[A-Za-z0-9_-]+)(\{(?P<options>[^}]*)\})?$")


def parse_strategy(text: str) -> Strategy:
    """``name`` or ``name{option=value,...}`` → the strategy; ``auto`` is the best one there is.

    Raises:
        UsageError: unknown name or option, or a value of the wrong type.
    """
    match = _SPEC.match(text.strip())
    if match is None:
        raise UsageError(f"'{text}' is no strategy", "write NAME or NAME{option=value,...}")
    name = DEFAULT if match.group("name") == "auto" else match.group("name")
    if name not in STRATEGIES:
        raise UsageError(
            f"there is no strategy '{name}'", "strategies: auto, " + ", ".join(sorted(STRATEGIES))
        )
    return STRATEGIES[name](**_options(STRATEGIES[name], match.group("options") or ""))


def _options(strategy: Known, text: str) -> dict[str, Any]:
    known = {field.name: field.default for field in fields(strategy)}
    result: dict[str, Any] = {}
    for part in filter(None, (item.strip() for item in text.split(","))):
        key, _, value = part.partition("=")
        if key not in known:
            offered = ", ".join(sorted(known)) or "none"
            raise UsageError(
                f"strategy '{strategy.name}' has no option '{key}'", f"it has: {offered}"
            )
        if isinstance(known[key], str):
            words: Mapping[str, tuple[str, ...]] = getattr(strategy, "words", {})
            if value not in words[key]:
                raise UsageError(
                    f"{strategy.name}{{{key}={value}}}: there is no such word",
                    f"words: {', '.join(words[key])}",
                )
            result[key] = value
        elif value.isascii() and value.isdigit():
            result[key] = int(value)
        else:
            raise UsageError(f"{strategy.name}{{{key}={value}}}: a whole number is wanted")
    return result
