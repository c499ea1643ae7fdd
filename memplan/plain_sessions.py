"""``rewrite --session default``: a plan that holds in anyone's ``InferenceSession(path)``."""

from __future__ import annotations

from dataclasses import replace

import onnx

from memplan.analysis import OpenModel
from memplan.errors import InfeasibleError
from memplan.graph.types import Graph
from memplan.planning.outcome import Progress, Strategy
from memplan.planning.plan import Plan
from memplan.planning.planner import PlanRequest, make_plan, prepare
from memplan.rewriter.apply import apply_plan
from memplan.rewriter.plain import Draft, Limits, PlainModel, finish
from memplan.rewriter.postconditions import ensure_sound, rewritten_types
from memplan.simulate.session import SessionKind
from memplan.units import format_bytes

SEARCH_SECONDS = 5.0
"""When the search for the fewest veils and pins ends."""

_ATTEMPTS = 4
_UNBOUNDED = 1 << 62


def plan_plain(
    model: OpenModel,
    request: PlanRequest,
    strategy: Strategy,
    time_limit: float,
    progress: Progress | None = None,
) -> tuple[Plan, PlainModel]:
    """Plan ``request`` so that the budget holds in a plain session.

    In the first run and in every later one, where a plan for that is found; else in the first one
    (``PlainModel.later`` tells what the others need).

    Args:
        model: what is planned.
        request: with a default session.
        strategy: decides what is recomputed.
        time_limit: seconds per attempt. The memory pattern's block has gaps that the planner does
            not foresee; where they break the budget, it plans again for less.
        progress: called with the present peak in bytes.

    Raises:
        InfeasibleError: not even the first run can keep the budget.
        UsageError: the graph has no input.
    """
    try:
        return _plan(model, request, strategy, time_limit, progress, later=True)
    except InfeasibleError:
        return _plan(model, request, strategy, time_limit, progress, later=False)


def _plan(
    model: OpenModel, request: PlanRequest, strategy: Strategy, time_limit: float,
    progress: Progress | None, *, later: bool,
) -> tuple[Plan, PlainModel]:  # fmt: skip
    budget = target = request.budget_bytes
    limits = Limits(budget, budget if later else _UNBOUNDED)
    for _ in range(_ATTEMPTS):
        plan = make_plan(
            prepare(_as_pinned(request, target, later)), strategy, time_limit, progress
        )
        draft = _draft(model, plan, request.session)
        peaks = draft.peaks()
        over = draft.resident + max(peaks.first, peaks.later if later else 0) - budget
        if over <= 0:
            break
        target -= over
    else:
        raise InfeasibleError(
            f"no plan found within {budget:,} B: the memory pattern of a plain session takes "
            f"{format_bytes(over)} more",
            "use --session tuned, or give a larger budget",
        )
    result = finish(draft, limits, SEARCH_SECONDS)
    ensure_sound(model.prepared.proto, result.model, result.timeline.graph)
    return replace(plan, budget_bytes=budget), result


def _as_pinned(request: PlanRequest, budget: int, later: bool) -> PlanRequest:
    """The request as the planner must see it: every node in its place and no shape known."""
    session = replace(request.session, priority_order=True, reuse=False)
    return replace(
        request,
        graph=_without_shapes(request.graph),
        session=session,
        budget_bytes=budget,
        outputs_reserved=later,
    )


def _without_shapes(graph: Graph) -> Graph:
    """The graph behind veils: the runtime neither reuses buffers nor works in place."""
    return replace(graph, tensors=tuple(replace(t, static=False) for t in graph.tensors))


def _draft(model: OpenModel, plan: Plan, session: SessionKind) -> Draft:
    planned: onnx.ModelProto = apply_plan(model.prepared.proto, plan, model.prepared.dims)
    types = rewritten_types(planned, plan, model.prepared.types)
    return Draft(planned, types, model.prepared.dims, session)


def plain_notes(plain: PlainModel, budget: int) -> list[str]:
    """What to know about later runs, for a reader who decides on session options."""
    later, first = plain.later.peak_with_workspace_bytes, plain.timeline.peak_with_workspace_bytes
    if later <= budget:
        return []
    return [
        f"later runs take {format_bytes(later)}, over the budget: no plan was found that keeps it "
        "with the block of the memory pattern; enable_mem_pattern = False in the session options "
        f"makes every run like the first ({format_bytes(first)})"
    ]
