"""``analyze --frontier``: what every budget between the floor and the peak would cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memplan.api.analysis import Analysis, analyze_open
from memplan.ops.cost import device_for
from memplan.planning.costs import NodeCosts
from memplan.planning.planner import plan_request, prepare
from memplan.simulate.opened import OpenModel
from memplan.simulate.session import session_kind

POINTS = 12


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """A budget on the whole (resident, dynamic and workspace bytes) and what it costs.

    ``feasible`` is False where no plan was found; ``peak_bytes`` is then the lowest one reached.
    """

    budget_bytes: int
    peak_bytes: int
    extra_cost_fraction: float
    clones: int
    feasible: bool

    def as_json(self) -> dict[str, object]:
        """All fields, by name."""
        return {
            "budget_bytes": self.budget_bytes,
            "peak_with_workspace_bytes": self.peak_bytes,
            "extra_cost_fraction": self.extra_cost_fraction,
            "recomputed_nodes": self.clones,
            "feasible": self.feasible,
        }


def find_frontier(
    model: OpenModel,
    provider: str = "cpu",
    points: int = POINTS,
    seconds: float = 20.0,
    progress: Callable[[int, int, int], None] | None = None,
) -> tuple[Analysis, tuple[FrontierPoint, ...]]:
    """The frontier of a model in a tuned session, cheapest budget last.

    Args:
        model: an open model.
        provider: whose memory rules and cost profile apply.
        points: number of budgets.
        seconds: for all of them together.
        progress: called before each budget with its index, their number, and the budget in bytes.
    """
    from memplan.solver.trace_frontier import budgets_between, trace_frontier

    session = session_kind("tuned", provider)
    analysis = analyze_open(model, session)
    costs = NodeCosts("estimate", device_for(provider), provider)
    prepared = prepare(plan_request(model, session, costs))
    resident = prepared.resident_bytes
    peak = analysis.timeline.peak_with_workspace_bytes - resident
    budgets = budgets_between(prepared.floor.with_workspace, peak, points)

    def tell(index: int, total: int, budget: int) -> None:
        if progress is not None:
            progress(index, total, resident + budget)

    found = trace_frontier(prepared.encoded.problem(peak), budgets, seconds, progress=tell)
    return analysis, tuple(
        FrontierPoint(
            resident + point.budget,
            resident + point.decision.peak,
            point.extra_cost_fraction,
            point.clones,
            point.decision.feasible,
        )
        for point in found
    )
