"""The plan put into effect, simulated, proved and read again; where one of these fails, planned
once more with less.

Planner, simulator and proof read a graph in ways of their own, on purpose. Where they differ, that
is a bug of ours; but the user asked for a plan. So it is planned once more, within the same
deadline, without most of what may be at fault.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import onnx

from memplan.api.rewrite.cheapest import Planned, chunk_step, find_plan
from memplan.api.rewrite.goal import Goal, Source
from memplan.api.rewrite.reread import ensure_readable
from memplan.api.versions import runtime_json
from memplan.equivalence.prove import Equivalence, Side, prove, reference_side
from memplan.errors import MemplanError
from memplan.passes.chunk.asked import NONE as NO_CHUNKS
from memplan.passes.manager import recorded
from memplan.planning.apply import apply_plan
from memplan.planning.forms.extend_graph import NO_KINDS
from memplan.planning.verify import Rejected, ensure
from memplan.proto.metadata import BOUND_DIMS, CHUNKED, get_metadata, set_metadata
from memplan.shapes.dims import symbolic_dims
from memplan.simulate.timeline import Timeline

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Applied:
    """The rewritten model, and its own simulation."""

    model: onnx.ModelProto
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class Proved:
    """A rewritten model that computes the same, and is what its own bytes say.

    ``goal``: what was planned for. ``notes``: that a plan before this one was rejected.
    """

    goal: Goal
    planned: Planned
    applied: Applied
    equivalence: Equivalence
    notes: tuple[str, ...] = ()


def proved_plan(source: Source, goal: Goal) -> Proved:
    """A plan for ``goal``, put into effect and proved.

    Where simulation, proof or the new file itself do not confirm it, which is our bug, it is
    planned once more with ``prune`` as its only pass, no forms of tensors and no chunks.

    Raises:
        InfeasibleError: no plan keeps the budget.
        Rejected: the second plan is rejected, too, or there is none: nothing is written.
    """
    try:
        return _planned(source, goal)
    except Rejected as error:
        note = (
            "planned again without passes (except prune), forms of tensors and chunks, as the "
            f"first plan was rejected: {error.reason}. This is a bug in memplan: please report it "
            "with the model"
        )
        _LOG.warning("%s", note)
        try:
            return replace(_planned(source, _with_least(goal)), notes=(note,))
        except MemplanError as second:
            _LOG.info("nor does that hold: %s", second.message)
            raise error from None


def _with_least(goal: Goal) -> Goal:
    """The goal for fewer mechanisms."""
    options = replace(goal.options, chunk=NO_CHUNKS, offload=False)
    return replace(goal, options=options, forms=NO_KINDS, chunk=None, prune_alone=True)


def _planned(source: Source, goal: Goal) -> Proved:
    planned = find_plan(source, goal)
    if goal.lowest:
        goal = replace(goal, budget_bytes=planned.plan.budget_bytes)
    return proved_as_planned(planned, _apply(planned, goal), goal)


def proved_as_planned(planned: Planned, applied: Applied, goal: Goal) -> Proved:
    """The new model, proved, and read again from its own bytes.

    Raises:
        Rejected: it is not proved, or does not say what is promised of it.
    """
    equivalence = _prove(planned, applied, goal)
    _record(applied, planned, goal)
    before, timeline = planned.model.prepared, applied.timeline
    if planned.plain is not None:
        timeline = planned.plain.of_file
    ensure_readable(applied.model, before, timeline, goal.session, goal.options.loss)
    return Proved(goal, planned, applied, equivalence)


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
        Rejected: it may not; our bug, and nothing is written.
    """
    before = planned.candidate.variant.model.prepared
    reference, other = reference_side(before, applied.model), Side(applied.model, before.folder)
    found = prove(reference, other, goal.session.provider)
    if found.reason is not None:
        raise Rejected(f"it would not compute the same: {found.reason}")
    return found


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
