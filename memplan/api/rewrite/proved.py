"""The plan put into effect, simulated, proved and read again; where one of these fails, mended.

Planner, simulator and proof read a graph in ways of their own, on purpose. Where they differ, that
is a bug of ours; but the user asked for a plan. So what the finding names is left out of the plan
at hand, and it is planned on from there: every time with less, and within the same deadline.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx

from memplan.api.rewrite.cheapest import Planned, chunk_step, find_plan
from memplan.api.rewrite.goal import Goal, Source
from memplan.api.rewrite.reread import ensure_readable
from memplan.api.versions import runtime_json
from memplan.equivalence.prove import Equivalence, Side, prove, reference_side
from memplan.errors import InfeasibleError, MemplanError
from memplan.passes.elide import Elide
from memplan.passes.manager import REWIRING, recorded
from memplan.planning.apply import apply_plan
from memplan.planning.forms.on_host import ON_HOST
from memplan.planning.verify import Rejected, ensure
from memplan.proto.metadata import BOUND_DIMS, CHUNKED, get_metadata, set_metadata
from memplan.shapes.dims import symbolic_dims
from memplan.simulate.timeline import Timeline
from memplan.units import format_bytes

_LOG = logging.getLogger(__name__)
_MOST_ROOMS = 2  # how often a plan that simulation rejects is mended
# What stays free at first where a finding names no bytes, as a share of the budget; it doubles.
_MARGIN = 0.01


@dataclass(frozen=True, slots=True)
class Applied:
    """The rewritten model, and its own simulation."""

    model: onnx.ModelProto
    timeline: Timeline


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

    What simulation, proof or the new file itself do not confirm is mended (:func:`_with_room`,
    :func:`_with_fewer_parts`): a net that says so, as each of these is our bug.

    Raises:
        InfeasibleError: no plan keeps the budget, or simulation confirms none.
        MemplanError: nothing is proved, or the new file does not say what is promised of it.
    """
    notes: tuple[str, ...] = ()
    rejections: list[Rejected] = []
    while True:
        try:
            planned = find_plan(source, goal)
        except InfeasibleError:
            if rejections:
                raise _unconfirmed(goal, rejections) from None
            raise
        reached = replace(goal, budget_bytes=planned.plan.budget_bytes) if goal.lowest else goal
        try:
            applied = _apply(planned, goal)
        except Rejected as error:
            rejections.append(error)
            if len(rejections) > _MOST_ROOMS:
                raise _unconfirmed(reached, rejections) from None
            goal = _with_room(goal, planned, error)
            _LOG.info("a plan was rejected, mending it: %s", error.reason)
            continue
        try:
            return proved_as_planned(planned, applied, reached, notes)
        except MemplanError as error:
            if (fewer := _with_fewer_parts(goal, planned)) is None:
                raise
            goal, left_out = fewer
            notes += (planned_again(left_out, error.message),)
            _LOG.warning("%s", notes[-1])


def proved_as_planned(
    planned: Planned, applied: Applied, goal: Goal, notes: tuple[str, ...] = ()
) -> Proved:
    """The new model, proved, and read again from its own bytes.

    Raises:
        MemplanError: it is not proved, or does not say what is promised of it.
    """
    equivalence = _prove(planned, applied, goal)
    _record(applied, planned, goal)
    before, timeline = planned.model.prepared, applied.timeline
    if planned.plain is not None:
        timeline = planned.plain.of_file
    ensure_readable(applied.model, before, timeline, goal.session, goal.options.loss)
    return Proved(goal, planned, applied, equivalence, notes)


def _apply(planned: Planned, goal: Goal) -> Applied:
    """Put the plan into effect and check the result by simulation.

    Raises:
        Rejected: the result is not what was planned; our bug.
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


def planned_again(left_out: str, reason: str) -> str:
    """What to say of a plan that was given up. It is a defect: tests fail where this is called."""
    return f"planned again without {left_out}, please report this with the model: {reason}"


def _with_room(goal: Goal, planned: Planned, error: Rejected) -> Goal:
    """The goal to mend a plan for that simulation rejects: as many bytes less as it was found over
    the budget, else a margin. Where the lowest peak was asked for, what was found, or a little more
    than was planned, is the budget from now on."""
    again = replace(goal, at_hand=planned.plan.node_names)
    margin = max(1, int(_MARGIN * planned.plan.budget_bytes), 2 * goal.margin_bytes)
    if goal.lowest:
        return replace(again, budget_bytes=error.peak_bytes or planned.plan.budget_bytes + margin)
    over = (error.peak_bytes or 0) - goal.budget_bytes
    return replace(again, margin_bytes=goal.margin_bytes + over if over > 0 else margin)


def _with_fewer_parts(goal: Goal, planned: Planned) -> tuple[Goal, str] | None:
    """The goal to mend a plan for that was not proved, and what it leaves out: other forms of
    tensors, then the pass that removes copies, then those that change what nodes compute, then
    chunks. None: there is nothing to leave out."""
    again = replace(goal, at_hand=planned.plan.node_names)
    if planned.plan.has_forms and (kinds := goal.forms - {ON_HOST}):
        return replace(again, forms=goal.forms & {ON_HOST}), f"forms ({', '.join(sorted(kinds))})"
    for names in ((Elide.name,), REWIRING):
        if gone := [each.name for each in goal.passes if each.name in names]:
            return replace(again, without=goal.without | {*gone}), ", ".join(gone)
    return (replace(again, chunk=None), "chunks") if goal.chunk is not None else None


def _unconfirmed(goal: Goal, rejections: Sequence[Rejected]) -> InfeasibleError:
    """What to say where only plans were found that simulation rejects."""
    reached = min((r.peak_bytes for r in rejections if r.peak_bytes is not None), default=None)
    if reached is None:
        return InfeasibleError(
            f"no plan found within {goal.budget_bytes:,} B that passes verification "
            f"({rejections[0].reason})",
            "use a larger budget, or another strategy (--strategy greedy)",
        )
    return InfeasibleError(
        f"no plan found within {goal.budget_bytes:,} B; the lowest verified peak is "
        f"{reached:,} B ({format_bytes(reached)})",
        f"a budget of at least {reached:,} B works",
    )


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
    if chunk_step(planned.steps) is None:
        return {}
    variant = planned.candidate.variant.model.prepared
    bound = {} if symbolic_dims(applied.model) else dict(variant.dims)
    return {CHUNKED: True, **({BOUND_DIMS: bound} if bound else {})}
