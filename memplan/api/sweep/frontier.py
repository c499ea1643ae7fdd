"""``analyze --frontier``: a sweep of one model over budgets between its floor and its peak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from memplan.api.analysis import Analysis
from memplan.api.sweep.request import DEFAULT_PLAN, SweepOptions
from memplan.api.sweep.sweep_result import SweepPoint
from memplan.api.sweep.sweeping import Progress, sweep
from memplan.errors import InfeasibleError

POINTS = 12
_SECONDS = 2.0
"""For every plan, by the clock: a view of the curve, soon."""


def budgets_between(floor: int, peak: int, points: int = POINTS) -> list[int]:
    """``points`` budgets from ``floor`` to ``peak``, both included, evenly spread."""
    if peak <= floor or points < 2:
        return [peak]
    return [floor + (peak - floor) * k // (points - 1) for k in range(points)]


def find_frontier(
    analysis: Analysis,
    model: Path,
    loss: str | None = None,
    state: Sequence[str] = (),
    progress: Progress | None = None,
) -> tuple[SweepPoint, ...]:
    """What budgets from the floor to the peak cost, the smallest first.

    Args:
        analysis: of ``model``: its floor and peak, session and dimensions.
        model: the file.
        loss: as ``analysis`` was asked.
        state: the same.
        progress: called with every answer.

    Raises:
        MemplanError: there is no answer, for another reason than that no plan was found.
    """
    peak = analysis.timeline.peak_with_workspace_bytes
    plan = replace(DEFAULT_PLAN, effort=0, time_limit=_SECONDS, loss=loss, state=tuple(state))
    found = sweep(
        model,
        budgets_between(analysis.floor_with_workspace_bytes, peak),
        dims=analysis.dims,
        sessions=(analysis.session.name,),
        providers=(analysis.session.provider,),
        options=SweepOptions(plan),
        progress=progress,
    )
    if found.error is not None and not isinstance(found.error, InfeasibleError):
        raise found.error
    return found.points


def frontier_json(point: SweepPoint) -> dict[str, object]:
    """A point in the words of ``analyze``; where there is no plan, its fields are null."""
    plan = point.planned
    return {
        "budget_bytes": point.budget_bytes,
        "peak_with_workspace_bytes": plan and plan.predicted_peak_with_workspace_bytes,
        "extra_cost_fraction": plan and plan.extra_cost_fraction,
        "recomputed_nodes": plan and plan.recomputed_nodes,
        "feasible": plan is not None,
    }
