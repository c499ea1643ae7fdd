"""``rewrite --session default``: a plan that holds in anyone's ``InferenceSession(path)``."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import onnx

from memplan.errors import InfeasibleError
from memplan.ir.graph import Graph
from memplan.planning.apply import apply_plan
from memplan.planning.plain.as_loaded import NOT_ASKED, written_as_loaded
from memplan.planning.plain.finish_fences import Draft, Limits, PlainModel, finish
from memplan.planning.plan import Plan
from memplan.planning.planner import PlanRequest, make_plan, prepare
from memplan.planning.verify import Rejected, ensure_sound, rewritten_types
from memplan.simulate.opened import OpenModel
from memplan.simulate.session import SessionKind
from memplan.solver.strategy import Progress, Strategy
from memplan.units import format_bytes

SEARCH_SECONDS = 5.0
"""When the search for the fewest input fences and pins ends."""

_ATTEMPTS = 6
_LOADS = 4
# Targets so close, as a share of the budget, that nothing lies between them.
_CLOSE = 0.005
_UNBOUNDED = 1 << 62
# How much more than the lowest plan a plain session is allowed, as shares, one after the other.
_ROOM = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)


def plan_plain(
    model: OpenModel,
    request: PlanRequest,
    strategy: Strategy,
    time_limit: float,
    progress: Progress | None = None,
) -> tuple[Plan, PlainModel]:
    """Plan ``request`` so that the budget holds in a plain session.

    In the first run and in every later one, where a plan for that is found; else in the first one
    (``PlainModel.later`` tells what the others need, and its notes say so).

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
    if request.lowest:
        return _plan_lowest(model, request, strategy, time_limit, progress)
    try:
        return _plan(model, request, strategy, time_limit, progress, later=True)
    except InfeasibleError:
        return _plan(model, request, strategy, time_limit, progress, later=False)


def _plan_lowest(
    model: OpenModel,
    request: PlanRequest,
    strategy: Strategy,
    time_limit: float,
    progress: Progress | None,
) -> tuple[Plan, PlainModel]:
    """The lowest plan with a node order that is kept, and if need be a little more room for the
    buffers of a plain session, until the first run fits."""
    lowest = make_plan(prepare(_as_pinned(request, 0, False)), strategy, time_limit, progress)
    failure: InfeasibleError | None = None
    for share in _ROOM:
        budget = int(lowest.predicted_peak_with_workspace_bytes * (1 + share))
        wanted = replace(request, lowest=False, budget_bytes=budget)
        try:
            return _plan(model, wanted, strategy, time_limit / 2, progress, later=False)
        except InfeasibleError as error:
            failure = error
    assert failure is not None
    raise failure


def _plan(
    model: OpenModel,
    request: PlanRequest,
    strategy: Strategy,
    time_limit: float,
    progress: Progress | None,
    *,
    later: bool,
) -> tuple[Plan, PlainModel]:
    """Plan for less and less until the budget holds, then for a little more again if that is
    cheaper."""
    budget = target = request.budget_bytes
    limits = Limits(budget, budget if later else _UNBOUNDED)
    pinning = SEARCH_SECONDS if math.isfinite(time_limit) else math.inf
    best: tuple[Plan, PlainModel] | None = None
    rejected: Rejected | None = None
    low, high, seconds = 0, 0, time_limit  # targets that are too low, and too high; 0: none yet
    for _ in range(_ATTEMPTS):
        try:
            plan = make_plan(
                prepare(_as_pinned(request, target, later)), strategy, seconds, progress
            )
        except InfeasibleError:
            if not high:
                raise
            low, over = target, 0
        else:
            try:
                draft = _draft(model, plan, request.session)
                result, over = _tried(model, draft, limits, pinning)
            except Rejected as error:
                rejected, result, over = error, None, max(1, int(_CLOSE * budget))
            if result is not None and (best is None or _cost(plan) < _cost(best[0])):
                best = (replace(plan, budget_bytes=budget), result)
            if result is not None:
                low = target
            else:
                high = min(target, plan.predicted_peak_with_workspace_bytes)
        if best is not None and (not high or _cost(best[0]) == 0):
            break
        target = (low + high) // 2 if low else high - over
        seconds = time_limit / 2
        if high - low < _CLOSE * budget and low:
            break
    if best is None:
        reason = "buffers of a plain session do not fit as closely as the plan needs"
        raise InfeasibleError(
            f"no plan found within {budget:,} B: {rejected.reason if rejected else reason}",
            "use --session tuned, or give a larger budget",
        )
    return best


def _tried(
    model: OpenModel, draft: Draft, limits: Limits, seconds: float
) -> tuple[PlainModel | None, int]:
    """The finished model if it keeps the limits, and by how many bytes it breaks them else.

    Raises:
        Rejected: it is not what was planned.
    """
    over = limits.excess(draft.peaks(), draft.resident)
    if over > 0:
        return None, over
    result = _finished(draft, limits, model.prepared.beside, seconds)
    ensure_sound(model.prepared.proto, result.model, result.timeline.graph)
    over = limits.excess(result.peaks, 0)
    return (result if over <= 0 else None), over


def _cost(plan: Plan) -> float:
    return plan.extra_cost_fraction


def _finished(draft: Draft, limits: Limits, weights: Path, seconds: float) -> PlainModel:
    """The model with the fewest fences and pins that the runtime leaves as it is.

    Where it fuses nodes of the file at load (recomputation may leave a tensor with a single
    reader, which makes new patterns), pins on them prevent that.
    """
    needed: frozenset[str] = frozenset()
    for _ in range(_LOADS):
        result = finish(draft, limits, seconds, needed)
        held = written_as_loaded(result.model, draft.kind, weights)
        if held is None or held.unchanged or needed.issuperset(held.gone):
            break
        needed |= frozenset(held.gone)
    notes = _later_notes(result, limits.first)
    if held is None:
        notes.append(NOT_ASKED)
    elif not held.unchanged:
        peak = held.peak_bytes()
        notes.append(held.change(peak))
        if peak > limits.first:
            raise Rejected(notes[-1])
    return replace(result, notes=tuple(notes))


def _as_pinned(request: PlanRequest, budget: int, later: bool) -> PlanRequest:
    """The request as the planner must see it: every node in its place and no shape known."""
    return replace(
        request,
        graph=_without_shapes(request.graph),
        session=in_file_order(request.session),
        budget_bytes=budget,
        outputs_reserved=later,
    )


def in_file_order(session: SessionKind) -> SessionKind:
    """A plain session where every node has a pin and every input a fence."""
    return replace(session, priority_order=True, reuse=False)


def _without_shapes(graph: Graph) -> Graph:
    """The graph behind input fences: the runtime neither reuses buffers nor works in place."""
    return replace(graph, tensors=tuple(replace(t, static=False) for t in graph.tensors))


def _draft(model: OpenModel, plan: Plan, session: SessionKind) -> Draft:
    planned: onnx.ModelProto = apply_plan(model.prepared.proto, plan, model.prepared.dims)
    types = rewritten_types(planned, plan, model.prepared.types)
    return Draft(planned, types, model.prepared.dims, session)


def _later_notes(plain: PlainModel, budget: int) -> list[str]:
    """What to know about later runs, for a reader who decides on session options."""
    later, first = plain.later.peak_with_workspace_bytes, plain.timeline.peak_with_workspace_bytes
    if later <= budget:
        return []
    return [
        f"later runs take {format_bytes(later)}, over the budget: no plan was found that keeps it "
        "with the block of the memory pattern; enable_mem_pattern = False in the session options "
        f"makes every run like the first ({format_bytes(first)})"
    ]
