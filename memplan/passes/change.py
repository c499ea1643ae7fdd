"""Changes of a graph that may be made or left, and which of many are worth it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import numpy as np

from memplan.ir.graph_facts import Facts
from memplan.passes.graph_pass import peak_did_not_rise
from memplan.passes.surgery import ModelEdit
from memplan.proto.edit import Nodes
from memplan.proto.nodes import is_constant
from memplan.shapes.fold import small_constants
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline, simulate

Change = Callable[[ModelEdit], None]
"""What may be done to a graph or left, whatever becomes of the others of a list."""


def facts_of(model: OpenModel) -> Facts:
    """What is known of a model's graph."""
    values = small_constants(model.prepared.bound.graph)
    return Facts(model.graph, values, model.prepared.exact)


def _changed(
    model: OpenModel, changes: Iterable[Change], removable: Nodes
) -> tuple[OpenModel, dict[str, int]]:
    """The model after ``changes``, and by name of a new tensor the number of its change."""
    edit = ModelEdit(model)
    maker: dict[str, int] = {}
    for number, change in enumerate(changes):
        change(edit)
        maker |= dict.fromkeys(islice(reversed(edit.types), len(edit.types) - len(maker)), number)
    return edit.opened(removable), maker


def with_most(
    model: OpenModel,
    timeline: Timeline,
    changes: Sequence[Change],
    removable: Nodes = is_constant,
) -> tuple[OpenModel, Timeline, int] | None:
    """The model after as many changes as let no peak rise, simulated, and how many; None if none.

    Where the whole makes it rise, it is tried without the changes that made something which is in
    memory where the peak is now exceeded, or else by halves: one bad change does not spoil the
    others.

    Args:
        model: the model, of which ``timeline`` is the simulation.
        timeline: before any change.
        changes: what may be done; any part of it.
        removable: nodes that go where the changes leave them without a reader.
    """
    accepted: list[Change] = []
    best: tuple[OpenModel, Timeline] | None = None
    waiting = [list(changes)] if changes else []
    while waiting:
        part = waiting.pop()
        after, maker = _changed(model, (*accepted, *part), removable)
        found = simulate(after.graph, timeline.session)
        before = best[1] if best is not None else timeline
        if peak_did_not_rise(found, before):
            accepted += part
            best = (after, found)
        elif len(part) > 1:
            above = {maker.get(name, -1) - len(accepted) for name in _above(found, before)}
            bad = [change for k, change in enumerate(part) if k in above]
            good = [change for k, change in enumerate(part) if k not in above]
            middle = len(part) // 2
            waiting += [bad, good] if bad and good else [part[middle:], part[:middle]]
    return None if best is None else (*best, len(accepted))


def _above(timeline: Timeline, before: Timeline) -> set[str]:
    """Names of tensors in the buffers that are in use where the peak of ``before`` is exceeded."""
    most = before.peak_with_workspace_bytes - timeline.resident_bytes
    steps = np.flatnonzero(timeline.dynamic + timeline.workspace > most)
    tensors = timeline.graph.tensors
    return {
        tensors[member].name
        for buffer in timeline.allocation.buffers
        if np.searchsorted(steps, buffer.birth) < np.searchsorted(steps, buffer.death)
        for member in buffer.members
    }
