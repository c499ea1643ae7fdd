"""Certified lower bounds (first version: none)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memplan.planning.problem import Problem


@dataclass(frozen=True, slots=True)
class Bound:
    """Seconds of extra cost that no sequence with the same order of first computations undercuts."""

    seconds: float
    kind: str
    method: str
    wall_seconds: float
    infeasible: bool


def lower_bound(
    problem: Problem,
    time_limit: float,
    upper: float | None = None,
    stop: Callable[[], bool] | None = None,
) -> Bound:
    """Placeholder: the trivial bound."""
    del problem, time_limit, upper, stop
    return Bound(0.0, "for this node order", "none", 0.0, False)
