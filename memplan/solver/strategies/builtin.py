"""Strategies by name: frozen dataclasses whose fields are their options.

``--strategy segments{count=4}`` makes ``Segments(count=4)``
(:mod:`memplan.solver.strategies.spec`). A strategy only decides; the planner simulates and verifies
every decision on one path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from memplan.deadline import Deadline
from memplan.errors import UsageError
from memplan.solver.problem import Problem
from memplan.solver.strategies.bottlenecks import Memory
from memplan.solver.strategies.checkpoints import Collection, Named, Speed
from memplan.solver.strategies.mincut import MinCut
from memplan.solver.strategies.mirror import Mirror
from memplan.solver.strategies.segments import Segments
from memplan.solver.strategies.spec import build, split_spec
from memplan.solver.strategy import Outcome, Progress, Strategy
from memplan.units import did_you_mean


@dataclass(frozen=True, slots=True)
class Search(Strategy):
    """Node order and recomputation searched together: greedy, then large-neighbourhood search.

    ``order``: 1 to move nodes, 0 to keep the file's order. ``iterations``: stop after so many
    rounds instead of at the time limit (0: the time limit); the plan then depends on ``seed``
    alone. ``certify``: 1 to look for a lower bound on the extra time beside the search. ``gap``:
    percentage points within which of the bound a plan is good enough to stop.
    """

    name: ClassVar[str] = "search"
    summary: ClassVar[str] = "node order and recomputation searched together, until time is over"
    source: ClassVar[str] = "memplan (docs/how/planner.md)"
    words: ClassVar[Mapping[str, tuple[str, ...]]] = {"order": ("0", "1"), "certify": ("0", "1")}
    meanings: ClassVar[Mapping[str, str]] = {
        "order": "0 keeps the file's order of nodes",
        "seed": "another one gives another plan",
        "iterations": "rounds of search; 0: until time is over",
        "certify": "0 looks for no lower bound on the extra time",
        "gap": "percentage points above the bound that are good enough to stop",
    }
    takes_forms: ClassVar[bool] = True
    order: int = 1
    seed: int = 0
    iterations: int = 0
    certify: int = 1
    gap: float = 0.1

    def solve(
        self, problem: Problem, time_limit: float, progress: Progress | None = None
    ) -> Outcome:
        """See :func:`memplan.solver.strategies.portfolio.solve_portfolio`."""
        from memplan.solver.strategies.portfolio import PortfolioOptions, solve_portfolio

        options = PortfolioOptions(
            bool(self.order), self.seed, self.iterations, bool(self.certify), self.gap / 100
        )
        decision, bound = solve_portfolio(problem, Deadline(time_limit), options, progress)
        return Outcome(decision, bound.seconds, bound.kind)


@dataclass(frozen=True, slots=True)
class Greedy(Strategy):
    """Greedy eviction with late recomputation and pruning, in the file's order; no search."""

    name: ClassVar[str] = "greedy"
    summary: ClassVar[str] = "evict what saves most per second of recomputation, then prune"
    source: ClassVar[str] = "memplan (docs/how/planner.md)"
    takes_forms: ClassVar[bool] = True

    def solve(
        self, problem: Problem, time_limit: float, progress: Progress | None = None
    ) -> Outcome:
        """See :func:`memplan.solver.search.anytime.solve`."""
        from memplan.solver.search.anytime import solve
        from memplan.solver.search.params import SearchOptions

        found = solve(problem, Deadline(time_limit), SearchOptions(order=False))
        if progress is not None and found.feasible:
            progress(found.peak, found.extra_cost / (problem.base_cost or 1.0))
        return Outcome(found)


@dataclass(frozen=True, slots=True)
class Keep(Strategy):
    """No recomputation: the graph as it is, in its own order."""

    name: ClassVar[str] = "none"
    summary: ClassVar[str] = "recompute nothing"
    source: ClassVar[str] = "memplan"

    def solve(
        self, problem: Problem, time_limit: float, progress: Progress | None = None
    ) -> Outcome:
        """The start sequence, feasible if it happens to fit."""
        from memplan.solver.evaluate import decide

        return Outcome(decide(problem, problem.start))


BUILT_IN: dict[str, type[Any]] = {
    strategy.name: strategy
    for strategy in (
        Search,
        Greedy,
        Keep,
        Segments,
        MinCut,
        Mirror,
        Speed,
        Memory,
        Named,
        Collection,
    )
}
DEFAULT = Search.name
ALIAS = "auto"
"""Stands for the best strategy there is."""


def parse_strategy(text: str) -> Strategy:
    """``name`` or ``name{option=value,...}`` → the strategy; ``auto`` is the best one there is.

    Raises:
        UsageError: unknown name or option, or a value of the wrong type.
    """
    spec = split_spec(text)
    if spec is None:
        raise UsageError(f"expected a strategy, got '{text}'", "as NAME or NAME{option=value,...}")
    known = {**BUILT_IN, ALIAS: BUILT_IN[DEFAULT]}
    if spec.name not in known:
        raise UsageError(
            f"unknown strategy '{spec.name}'",
            f"{did_you_mean(spec.name, known)}strategies: {', '.join(sorted(known))}",
        )
    return cast(Strategy, build(known[spec.name], spec, "strategy"))
