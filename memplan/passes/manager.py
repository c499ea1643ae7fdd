"""The passes by name, one after the other, each with what it saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memplan.deadline import Deadline
from memplan.ir.graph import Graph
from memplan.passes.elide import Elide
from memplan.passes.graph_pass import Pass, peak_did_not_rise
from memplan.passes.masks import Masks
from memplan.passes.order import Order
from memplan.passes.prune import Prune
from memplan.passes.release import Release
from memplan.planning.plan_file import ChunkDecision
from memplan.simulate.opened import OpenModel
from memplan.simulate.session import SessionKind
from memplan.simulate.timeline import Timeline, simulate

NAMES = (Elide.name, Prune.name, Release.name, Masks.name, Order.name)
"""In the order in which they run."""
_SPARED = (Release.name, Masks.name, Order.name)


@dataclass(frozen=True, slots=True)
class PassStep:
    """A pass that ran: the model behind it, simulated, and what it did, if it ``changed`` anything.

    ``chunks``: what it put into chunks.

    ``removed_outputs`` and ``removed_inputs`` are names of the graph's interface, in its order.
    """

    name: str
    model: OpenModel
    timeline: Timeline
    changed: bool
    removed_outputs: tuple[str, ...] = ()
    removed_inputs: tuple[str, ...] = ()
    note: str = ""
    chunks: tuple[ChunkDecision, ...] = ()


def without_order(steps: tuple[PassStep, ...]) -> tuple[PassStep, ...]:
    """The steps before the nodes were moved; the same object where none was."""
    moved = (k for k, step in enumerate(steps) if step.changed and step.name == Order.name)
    return next((steps[:k] for k in moved), steps)


def removed(steps: Sequence[PassStep]) -> dict[str, list[str]]:
    """Names of the interface that were removed, by ``removed_outputs`` and ``removed_inputs``."""
    return {
        "removed_outputs": [name for step in steps for name in step.removed_outputs],
        "removed_inputs": [name for step in steps for name in step.removed_inputs],
    }


def recorded(steps: Sequence[PassStep]) -> dict[str, list[str]]:
    """What a rewritten file says of its passes: their names, and what they removed."""
    interface = {key: names for key, names in removed(steps).items() if names}
    return {"passes": [step.name for step in steps], **interface}


def make_passes(
    names: Sequence[str], wrt: tuple[str, ...] = (), order: Order | None = None
) -> tuple[Pass, ...]:
    """The passes of these names. ``wrt``: see :class:`Prune`."""
    known: dict[str, Pass] = {
        Elide.name: Elide(),
        Prune.name: Prune(wrt),
        Release.name: Release(),
        Masks.name: Masks(),
        Order.name: order or Order(),
    }
    return tuple(known[name] for name in names)


def passes_for(
    session: SessionKind, wrt: tuple[str, ...], order: Order | None = None
) -> tuple[Pass, ...]:
    """All passes that fit the kind of session.

    A plain session optimizes what it loads, in an order of its own: nodes that are moved go
    elsewhere there, and copies that were removed may bring fusions that cost memory. There only
    outputs are removed.
    """
    ordered = session.priority_order and not session.reuse
    return make_passes(NAMES if ordered else (Prune.name,), wrt, order)


def run_passes(
    passes: Sequence[Pass],
    model: OpenModel,
    timeline: Timeline,
    deadline: Deadline | None = None,
    done: Sequence[PassStep] = (),
) -> tuple[PassStep, ...]:
    """Run the passes on ``model``, one after the other: a step for each.

    A pass that would raise a peak is left out, unless outputs went by it, which was asked for; so
    is one that only saves memory, once the ``deadline`` has passed.

    Args:
        passes: the passes.
        model: the model.
        timeline: its simulation.
        deadline: see above.
        done: steps of the first passes, on the same model.

    Raises:
        UsageError: an option of a pass names what is not there.
    """
    steps = list(done)
    if steps:
        model, timeline = steps[-1].model, steps[-1].timeline
    for each in passes[len(steps) :]:
        if each.name in _SPARED and deadline is not None and deadline.passed:
            note = "left out: no time left"
            steps.append(PassStep(each.name, model, timeline, changed=False, note=note))
            continue
        step = _run(each, model, timeline)
        steps.append(step)
        model, timeline = step.model, step.timeline
    return tuple(steps)


def _run(each: Pass, model: OpenModel, timeline: Timeline) -> PassStep:
    """What a pass does to ``model``, whose simulation is ``timeline``."""
    found = each.apply(model, timeline)
    if found.model is model:
        return PassStep(each.name, model, timeline, changed=False, note=found.note)
    before, after = model.graph, found.model.graph
    simulated = simulate(after, timeline.session)
    outputs = _missing(before, before.outputs, after, after.outputs)
    if not outputs and not found.judged and not peak_did_not_rise(simulated, timeline):
        note = "left out: it would raise the peak"
        return PassStep(each.name, model, timeline, changed=False, note=note)
    inputs = _missing(before, before.inputs, after, after.inputs)
    return PassStep(
        each.name, found.model, simulated, True, outputs, inputs, found.note, found.chunks
    )


def _missing(
    before: Graph, tensors: Sequence[int], after: Graph, kept: Sequence[int]
) -> tuple[str, ...]:
    """Names of ``tensors`` of the graph ``before`` that are not among those ``kept`` ``after``."""
    present = {after.tensors[t].name for t in kept}
    return tuple(n for t in tensors if (n := before.tensors[t].name) not in present)
