"""Plans that hold: applied, checked, and made anew with a margin where the check rejects them.

The planner and the check read a graph in two ways (:mod:`memplan.planning.verify`). Where they
differ, that is a bug of ours; but the user asked for a plan, and mostly another one will do.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import onnx

from memplan.errors import InfeasibleError
from memplan.planning.apply import apply_plan
from memplan.planning.plan import Plan
from memplan.planning.planner import PlanRequest, make_plan, prepare
from memplan.planning.verify import Rejected, ensure
from memplan.shapes.prepare import PreparedModel
from memplan.simulate.timeline import Timeline
from memplan.solver.strategy import Progress, Strategy
from memplan.units import format_bytes

_LOG = logging.getLogger(__name__)
_ATTEMPTS = 3
# The first margin where the check names no figure, as a share of the budget; it doubles.
_MARGIN = 0.01


@dataclass(frozen=True, slots=True)
class ConfirmedPlan:
    """A plan, the model that it makes, and the simulation that confirms it."""

    plan: Plan
    model: onnx.ModelProto
    timeline: Timeline


def confirmed_plan(
    prepared: PreparedModel,
    request: PlanRequest,
    strategy: Strategy,
    time_limit: float,
    progress: Progress | None = None,
) -> ConfirmedPlan:
    """Plan ``request``, apply the plan and check the result.

    What the check rejects is planned again for less: by the bytes that it found over the budget,
    else by a margin.

    Args:
        prepared: the model that the request's graph was built from.
        request: what to plan, for a tuned session.
        strategy: decides what is recomputed.
        time_limit: seconds for the first plan, and half as many for every further one.
        progress: called with the present peak in bytes.

    Raises:
        InfeasibleError: no plan keeps the budget, or the check confirms none; the message has the
            lowest peak that it did confirm.
        UsageError: the strategy cannot work on this graph.
    """
    budget = target = request.budget_bytes
    margin = max(1, int(_MARGIN * budget))
    rejections: list[Rejected] = []
    for attempt in range(_ATTEMPTS):
        try:
            plan = make_plan(
                prepare(replace(request, budget_bytes=target)),
                strategy,
                time_limit if attempt == 0 else time_limit / 2,
                progress,
            )
        except InfeasibleError:
            if not rejections:
                raise
            break
        plan = replace(plan, budget_bytes=max(budget, plan.budget_bytes))
        model = apply_plan(prepared.proto, plan, prepared.dims)
        try:
            timeline = ensure(prepared.proto, model, plan, prepared.types, request.session)
        except Rejected as rejected:
            rejections.append(rejected)
            if (
                request.lowest
            ):  # what the plan was said to take, or a little more, is the budget now
                request = replace(request, lowest=False)
                budget = target = rejected.peak_bytes or plan.budget_bytes + max(
                    1, int(_MARGIN * plan.budget_bytes)
                )
                continue
            _LOG.info("a plan was rejected, planning again: %s", rejected.reason)
            over = (rejected.peak_bytes or 0) - budget
            target -= over if over > 0 else margin
            margin *= 2
        else:
            return ConfirmedPlan(plan, model, timeline)
    raise _unconfirmed(budget, rejections)


def _unconfirmed(budget: int, rejections: list[Rejected]) -> InfeasibleError:
    """What to say where only plans were found that the check rejects."""
    reached = min((r.peak_bytes for r in rejections if r.peak_bytes is not None), default=None)
    if reached is None:
        return InfeasibleError(
            f"no plan found within {budget:,} B that its check confirms ({rejections[0].reason})",
            "use a larger budget, or another strategy (--strategy greedy)",
        )
    return InfeasibleError(
        f"no plan found within {budget:,} B; the lowest peak that its check confirms is "
        f"{reached:,} B ({format_bytes(reached)})",
        f"a budget of at least {reached:,} B works",
    )
