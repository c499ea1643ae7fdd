"""The plan put into effect, proved and read again; and made anew with less where that fails."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import onnx

from memplan.api.rewrite.cheapest import Planned, find_plan
from memplan.api.rewrite.goal import Goal, Source
from memplan.api.rewrite.reread import ensure_readable
from memplan.api.versions import runtime_json
from memplan.equivalence.prove import Equivalence, Side, prove, reference_side
from memplan.errors import MemplanError
from memplan.passes.chunk.asked import NAME as CHUNK
from memplan.passes.elide import Elide
from memplan.passes.manager import REWIRING, recorded
from memplan.planning.apply import apply_plan
from memplan.planning.forms.on_host import ON_HOST
from memplan.planning.verify import ensure
from memplan.proto.metadata import BOUND_DIMS, CHUNKED, get_metadata, set_metadata
from memplan.shapes.dims import symbolic_dims
from memplan.simulate.timeline import Timeline

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Applied:
    """The rewritten model, and its own simulation."""

    model: onnx.ModelProto
    timeline: Timeline


def _apply(planned: Planned, goal: Goal) -> Applied:
    """Put the plan into effect and check the result by simulation.

    Raises:
        MemplanError: the result is not what was planned; our bug.
    """
    if planned.plain is not None:
        return Applied(planned.plain.model, planned.plain.timeline)
    prepared = planned.model.prepared
    result = apply_plan(prepared.proto, planned.plan, prepared.dims)
    timeline = ensure(prepared.proto, result, planned.plan, prepared.types, goal.session)
    return Applied(result, timeline)


def _prove(planned: Planned, applied: Applied, goal: Goal) -> Equivalence:
    """Prove that the result computes what the graph did before any pass or plan.

    Raises:
        MemplanError: it may not; our bug, and nothing is written.
    """
    before = planned.candidate.variant.model.prepared
    reference, other = reference_side(before, applied.model), Side(applied.model, before.folder)
    found = prove(reference, other, goal.session.provider)
    if found.reason is not None:
        raise MemplanError(
            f"the plan was rejected: it would not compute the same: {found.reason}",
            "nothing was written; please report this with the model",
        )
    return found


@dataclass(frozen=True, slots=True)
class Proved:
    """A rewritten model that computes the same, and is what its own bytes say.

    ``goal``: what was planned for. ``notes``: what was given up on the way.
    """

    goal: Goal
    planned: Planned
    applied: Applied
    equivalence: Equivalence
    notes: tuple[str, ...] = ()


def proved_plan(source: Source, goal: Goal) -> Proved:
    """A plan for ``goal``, put into effect and proved.

    Should the proof not follow a pass that changes what nodes compute or makes chunks, or the new
    file not say what is promised of it, the plan is made without: a net that says so, as each of
    these is our bug.

    Raises:
        InfeasibleError: no plan keeps the budget.
        MemplanError: nothing is proved, or the new file does not say what is promised of it.
    """
    notes: tuple[str, ...] = ()
    while True:
        planned = find_plan(source, goal)
        applied = _apply(planned, goal)
        reached = replace(goal, budget_bytes=planned.plan.budget_bytes) if goal.lowest else goal
        try:
            equivalence = _prove(planned, applied, goal)
            _record(applied, planned, reached)
            before, timeline = planned.model.prepared, applied.timeline
            ensure_readable(applied.model, before, timeline, goal.session, goal.options.loss)
            return Proved(reached, planned, applied, equivalence, notes)
        except MemplanError as error:
            if (fewer := _more_provable(goal)) is None:
                raise
            goal, left_out = fewer
            notes += (planned_again(left_out, error.message),)
            _LOG.warning("%s", notes[-1])


def planned_again(left_out: str, reason: str) -> str:
    """What to say of a plan that was given up. It is a defect: tests fail where this is called."""
    return f"planned again without {left_out}, please report this with the model: {reason}"


def _more_provable(goal: Goal) -> tuple[Goal, str] | None:
    """Without the pass that removes copies, then without any that changes what nodes compute, then
    without chunks, and what that is; None where there is nothing to leave out."""
    for left_out in ((Elide.name,), REWIRING):
        kept = tuple(each for each in goal.passes if each.name not in left_out)
        if len(kept) < len(goal.passes):
            gone = [each.name for each in goal.passes if each.name in left_out]
            return replace(goal, passes=kept), ", ".join(gone)
    if proved_forms := goal.forms - {ON_HOST}:
        return replace(goal, forms=goal.forms & {ON_HOST}), f"forms ({', '.join(proved_forms)})"
    return (replace(goal, chunk=None), "chunks") if goal.chunk is not None else None


def _record(applied: Applied, planned: Planned, goal: Goal) -> None:
    """Note in the file how it was made, so that ``validate`` can treat the original alike."""
    values = get_metadata(applied.model)
    values.update(
        {
            "optimize": planned.candidate.variant.level,
            "provider": goal.options.provider,
            "session": goal.options.session,
            "budget_bytes": goal.budget_bytes,
            "runtime": runtime_json(goal.options.provider),
            "predicted_peak_bytes": applied.timeline.peak_bytes,
            "predicted_peak_with_workspace_bytes": applied.timeline.peak_with_workspace_bytes,
            **recorded(planned.steps),
            **_recorded_chunks(planned, applied),
        }
    )
    set_metadata(applied.model, values)


def _recorded_chunks(planned: Planned, applied: Applied) -> dict[str, object]:
    """What the file says of its chunks, for which its dimensions are no longer symbolic."""
    if not any(step.changed and step.name == CHUNK for step in planned.steps):
        return {}
    variant = planned.candidate.variant.model.prepared
    bound = {} if symbolic_dims(applied.model) else dict(variant.dims)
    return {CHUNKED: True, **({BOUND_DIMS: bound} if bound else {})}
