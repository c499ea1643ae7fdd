"""``rewrite --session default``: a plan that holds in anyone's ``InferenceSession(path)``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from memplan.deadline import Deadline
from memplan.errors import InfeasibleError, ModelRefusedError, PlanError
from memplan.ir.graph import Graph
from memplan.planning.apply import apply_plan, rewritten_types
from memplan.planning.plain.as_loaded import NOT_ASKED, Loaded, written_as_loaded
from memplan.planning.plain.finish_fences import (
    Draft,
    Peaks,
    PlainModel,
    finish,
    finished_with,
)
from memplan.planning.plan import Plan
from memplan.planning.plan_file import EDITED, PlainDecision
from memplan.planning.planner import PlanRequest, Prepared, make_plan
from memplan.simulate.opened import OpenModel
from memplan.simulate.session import SessionKind
from memplan.simulate.timeline import later_runs
from memplan.solver.strategy import Progress, Strategy
from memplan.units import format_bytes

_ATTEMPTS = 6
_LOADS = 4
# Shares of the time that is left: for a plan, and for all plans of which later runs keep the
# budget, too; and what each of those has at least, as one without time shows nothing.
_ATTEMPT, _LATER, _LEAST = 0.4, 0.6, 0.15
_FEWER = 0.25  # the same, for doing without fences and pins
# Targets so close, as a share of the budget, that nothing lies between them.
_CLOSE = 0.005
_UNBOUNDED = 1 << 62
_PIN = 8  # bytes that the result of a pin takes


def plan_plain(
    model: OpenModel,
    prepared: Prepared,
    session: SessionKind,
    strategy: Strategy,
    deadline: Deadline,
    progress: Progress | None = None,
) -> tuple[Plan, PlainModel]:
    """Plan a request so that the budget holds in a plain session.

    In the first run and in every later one, where a plan for that is found; else in the first one
    (``PlainModel.later`` tells what the others need, and its notes say so).

    Args:
        model: what is planned.
        prepared: the request, with everything fenced (:func:`everything_fenced`).
        session: the default session that the file is for.
        strategy: decides what is recomputed.
        deadline: for all searches. The memory pattern's block has gaps that the planner does not
            foresee; where they break the budget, it plans again for less. What is made of the last
            plan may come later; where there is none yet, one more attempt, too.
        progress: called with the present peak in bytes.

    Raises:
        InfeasibleError: not even the first run can keep the budget.
        Rejected: what was made is not what was planned; our bug.
        UsageError: the graph has no input.
    """
    planner = _PlainPlanner(model, prepared, session, strategy, deadline, progress)
    if prepared.request.lowest:
        return planner.lowest()
    try:
        return planner.within(deadline.share(_LATER), later=True)
    except InfeasibleError:
        return planner.within(deadline, later=False)


@dataclass(frozen=True, slots=True)
class _PlainPlanner:
    """Plans for one model, and what a plain session makes of them."""

    model: OpenModel
    prepared: Prepared
    session: SessionKind
    strategy: Strategy
    deadline: Deadline
    progress: Progress | None

    def lowest(self) -> tuple[Plan, PlainModel]:
        """The lowest plan in a node order that is kept; the budget is what its first run takes."""
        plan = self._plan(0, self.deadline, later=False)
        peak = plan.predicted_peak_with_workspace_bytes + _PIN * len(plan.sequence)
        result = _made(self.model, plan, self.session, Peaks(peak, _UNBOUNDED), self.deadline)
        return replace(plan, budget_bytes=result.peaks.first), result

    def within(self, deadline: Deadline, *, later: bool) -> tuple[Plan, PlainModel]:
        """Plan for less and less until the budget holds, then for a little more again if that is
        cheaper. ``later``: it must hold in later runs, too; without a plan it ends while there is
        time for one for the first run."""
        budget = self.prepared.request.budget_bytes
        limits = Peaks(budget, budget if later else _UNBOUNDED)
        best: tuple[Plan, PlainModel] | None = None
        target = budget
        low: int | None = None  # the highest target below which nothing more is to be found
        high: int | None = None  # the lowest whose plan breaks a limit
        for attempt in range(_ATTEMPTS):
            before, over = self.deadline.spent, 0
            try:
                plan = self._plan(target, deadline, later=later)
            except InfeasibleError:
                if high is None:
                    raise
                low = target
            else:
                result = _made(self.model, plan, self.session, limits, self.deadline)
                over = result.peaks.over(limits)
                if over > 0:
                    high = min(target, plan.predicted_peak_with_workspace_bytes)
                else:
                    low = target
                    if best is None or plan.extra_cost_fraction < best[0].extra_cost_fraction:
                        best = (plan, result)
            done = best is not None and not best[0].extra_cost_fraction
            if high is None or done or (best is not None and deadline.passed):
                break
            needed = self.deadline.spent - before if later else 0.0
            if best is None and self.deadline.left <= needed and (later or attempt):
                break
            if low is not None and high - low < _CLOSE * budget:
                break
            target = high - over if low is None else (low + high) // 2
        if best is None:
            raise InfeasibleError(
                f"no plan found within {budget:,} B: buffers of a plain session do not fit as "
                "closely as the plan needs",
                "use --session tuned, or give a larger budget",
            )
        return replace(best[0], budget_bytes=budget), best[1]

    def _plan(self, budget: int, deadline: Deadline, *, later: bool) -> Plan:
        """A plan with every fence and pin; 0: the lowest."""
        seconds = max(deadline.share(_ATTEMPT).left, self.deadline.share(_LEAST).left)
        request = replace(self.prepared.request, budget_bytes=budget, outputs_reserved=later)
        asked = replace(self.prepared, request=request)
        return make_plan(asked, self.strategy, seconds, self.progress)


def _draft(model: OpenModel, plan: Plan, session: SessionKind) -> Draft:
    prepared = model.prepared
    planned = apply_plan(prepared.proto, plan, prepared.dims)
    types = rewritten_types(planned, plan, prepared.types)
    return Draft(planned, types, prepared.dims, session)


def _made(
    model: OpenModel, plan: Plan, session: SessionKind, limits: Peaks, deadline: Deadline
) -> PlainModel:
    """The model with few fences and pins that keeps the limits and that the runtime leaves as it
    is; where none keeps them, one that breaks them.

    Where the runtime fuses nodes of the file at load (recomputation may leave a tensor with a
    single reader, which makes new patterns), pins on them prevent that. A fusion may also take a
    node away that a pin still reads, so that the runtime refuses the file (FastGeluFusion does not
    look who reads half of its input): what it fuses is seen without pins then.

    Raises:
        ModelRefusedError: pins on all that do not help.
    """
    draft, needed = _draft(model, plan, session), frozenset[str]()
    weights = model.prepared.beside
    for load in range(_LOADS):
        result = finish(draft, limits, needed, deadline.share(_FEWER))
        if result.peaks.over(limits) > 0:
            return result
        try:
            held = written_as_loaded(result.model, session, weights)
        except ModelRefusedError:
            bare = finished_with(draft, draft.input_fences[: result.input_fences], ())
            fused = _fused(bare, session, weights, frozenset(draft.pinnable))
            if needed >= fused or load + 1 == _LOADS:
                raise
            needed |= fused
            continue
        if needed >= _changed(held):
            break
        needed |= _changed(held)
    return _held_to(result, held, limits)


def _fused(
    bare: PlainModel, session: SessionKind, weights: Path, every: frozenset[str]
) -> frozenset[str]:
    """What the runtime fuses of a file without pins; ``every`` node where it refuses that, too, as
    a node of the plan reads what a fusion takes away."""
    try:
        return _changed(written_as_loaded(bare.model, session, weights))
    except ModelRefusedError:
        return every


def _changed(held: Loaded | None) -> frozenset[str]:
    """Nodes of a file that a session does not hold as they stand there."""
    return frozenset() if held is None else frozenset((*held.gone, *held.rewired))


def _held_to(result: PlainModel, held: Loaded | None, limits: Peaks) -> PlainModel:
    """The model as the runtime holds it, with notes on later runs; None: not asked."""
    if held is None:
        notes = (*_later_notes(result, limits.first), NOT_ASKED)
        return replace(result, notes=notes)
    result = replace(result, held=held.model.graph)
    notes = ()
    if not held.unchanged:
        timeline = held.timeline()
        result = replace(result, timeline=timeline, later=later_runs(timeline), own=result.timeline)
        notes = (held.change(result.peaks.first),)
    return replace(result, notes=(*_later_notes(result, limits.first), *notes))


def plain_again(
    model: OpenModel, plan: Plan, session: SessionKind, decision: PlainDecision
) -> PlainModel:
    """A plan with the fences and pins that were found for it, in a plain session.

    Raises:
        PlanError: the planned graph has other inputs, constants or tensors.
        UsageError: the graph has no input.
    """
    draft = _draft(model, plan, session)
    fenced, pins = {*decision.input_fences}, {*decision.pins}
    chosen = [fence for fence in draft.input_fences if fence.sources[0] in fenced]
    pinned = [tensor for tensor in draft.pinnable.values() if tensor in pins]
    if decision != PlainDecision(tuple(fence.sources[0] for fence in chosen), tuple(pinned)):
        raise PlanError("the plan's fences and pins are for other tensors", EDITED)
    result = finished_with(draft, chosen, pinned)
    held = written_as_loaded(result.model, session, model.prepared.beside)
    return _held_to(result, held, Peaks(plan.budget_bytes, _UNBOUNDED))


def everything_fenced(request: PlanRequest) -> PlanRequest:
    """The request for a session with every node in its place and no shape known."""
    session = in_file_order(request.session)
    return replace(request, graph=_without_shapes(request.graph), session=session)


def in_file_order(session: SessionKind) -> SessionKind:
    """A plain session where every node has a pin and every input a fence."""
    return replace(session, priority_order=True, reuse=False)


def _without_shapes(graph: Graph) -> Graph:
    """The graph behind input fences: the runtime neither reuses buffers nor works in place."""
    return replace(graph, tensors=tuple(replace(t, static=False) for t in graph.tensors))


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
