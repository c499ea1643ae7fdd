"""From a plan to a model that may be written: applied, checked on its own bytes, and proved; where
that fails, planned once more with less.

Planner, simulator and proof read a graph in ways of their own, on purpose. Where they differ, that
is a bug of ours; but the user asked for a plan. So it is planned once more, within the same
deadline, without most of what may be at fault.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import onnx

from memplan.api.rewrite.candidates import chunk_step
from memplan.api.rewrite.cheapest import Planned, find_plan
from memplan.api.rewrite.check_file import (
    opened_anew,
    require_as_planned,
    require_as_promised,
    sound_timeline,
)
from memplan.api.rewrite.goal import Goal, Source
from memplan.api.versions import runtime_json
from memplan.equivalence.prove import Equivalence, Side, prove, reference_side
from memplan.errors import MemplanError
from memplan.passes.chunk.asked import NONE as NO_CHUNKS
from memplan.passes.manager import recorded
from memplan.planning.apply import apply_plan
from memplan.planning.behind_copies import in_planned_order
from memplan.planning.forms.extend_graph import NO_KINDS
from memplan.planning.plan import Rejected
from memplan.proto.metadata import BOUND_DIMS, CHUNKED, get_metadata, set_metadata
from memplan.providers import PROVIDERS
from memplan.shapes.dims import symbolic_dims
from memplan.simulate.opened import placed
from memplan.simulate.timeline import Timeline, simulate

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Proved:
    """A rewritten model that computes the same, and is what its own bytes say.

    ``goal``: what was planned for. ``timeline``: what the model takes in the session that it is
    for; ``copied_peak_bytes``: its peak with what a plugin's session copies to and from nodes on
    the CPU, workspace included, 0: it copies nothing. ``notes``: that a plan before this one was
    rejected.
    """

    goal: Goal
    planned: Planned
    model: onnx.ModelProto
    timeline: Timeline
    equivalence: Equivalence
    copied_peak_bytes: int = 0
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
    found = finished(planned, goal)
    if planned.plain is None:
        require_as_planned(planned.plan, found.timeline)
    return found


def finished(planned: Planned, goal: Goal) -> Proved:
    """The new model, checked on its own bytes and proved. A file for plain sessions takes what its
    plan says; what one for tuned sessions takes is not judged here.

    Raises:
        Rejected: it is not sound, or not proved.
    """
    prepared, plain = planned.model.prepared, planned.plain
    if plain is None:
        model = apply_plan(prepared.proto, planned.plan, prepared.dims)
    else:
        model = plain.model
    _record(model, planned, goal)
    session, loss = goal.session, goal.options.loss
    timeline = sound_timeline(model, prepared, planned.plan, session, loss)
    copied = 0
    if plain is not None:
        require_as_promised(plain.of_file, timeline)
        timeline = plain.timeline
    if PROVIDERS[session.provider].plugin:
        model = in_planned_order(
            model,
            session,
            lambda made: opened_anew(made, prepared, session, loss).graph,
            exact=prepared.exact,
        )
        # Its shapes are the host's: what the device holds is as before.
        graph = sound_timeline(model, prepared, planned.plan, session, loss).graph
        # Copies run behind all else that is ready, and what reads them behind them.
        held, devices = placed(graph, session)
        if devices.copies:
            copied = simulate(held, session, devices).peak_with_workspace_bytes
    _record_peaks(model, timeline)
    return Proved(goal, planned, model, timeline, _prove(planned, model, goal), copied)


def _prove(planned: Planned, model: onnx.ModelProto, goal: Goal) -> Equivalence:
    """Prove that the result computes what the graph did before any pass or plan.

    Raises:
        Rejected: it may not; our bug, and nothing is written.
    """
    before = planned.candidate.variant.model.prepared
    reference, other = reference_side(before, model), Side(model, before.folder)
    found = prove(reference, other, goal.session.provider)
    if found.reason is not None:
        # In the words of the proof, which tell its authors more than a user.
        _LOG.info("not proved: %s", found.reason)
        raise Rejected("the new graph is not proved to compute the same")
    return found


def _record(model: onnx.ModelProto, planned: Planned, goal: Goal) -> None:
    """Note in the file how it was made, so that ``validate`` can treat the original alike."""
    values = get_metadata(model)
    values.update(
        {
            "optimize": planned.candidate.variant.level,
            "provider": goal.options.provider,
            "session": goal.options.session,
            "budget_bytes": goal.budget_bytes,
            "runtime": runtime_json(goal.options.provider),
            **recorded(planned.steps),
            **_recorded_chunks(planned, model),
        }
    )
    set_metadata(model, values)


def _record_peaks(model: onnx.ModelProto, timeline: Timeline) -> None:
    """The last that the file is told, and what nothing that reads it goes by."""
    values = get_metadata(model)
    values["predicted_peak_bytes"] = timeline.peak_bytes
    values["predicted_peak_with_workspace_bytes"] = timeline.peak_with_workspace_bytes
    set_metadata(model, values)


def _recorded_chunks(planned: Planned, model: onnx.ModelProto) -> dict[str, object]:
    """What the file says of its chunks, for which its dimensions are no longer symbolic."""
    if chunk_step(planned.steps) is None:
        return {}
    variant = planned.candidate.variant.model.prepared
    bound = {} if symbolic_dims(model) else dict(variant.dims)
    return {CHUNKED: True, **({BOUND_DIMS: bound} if bound else {})}
