"""Changes of a graph that may be made or left, and which of many are worth it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from memplan.ir.graph_facts import Facts
from memplan.passes.surgery import ModelEdit
from memplan.proto.edit import Nodes
from memplan.proto.nodes import is_constant
from memplan.shapes.fold import small_constants
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline, simulate

Accepts = Callable[[Timeline, Timeline], bool]
"""Whether a timeline is good enough, given the one before."""
Change = Callable[[ModelEdit], None]
"""What may be done to a graph or left, whatever becomes of the others of a list."""


def facts_of(model: OpenModel) -> Facts:
    """What is known of a model's graph."""
    values = small_constants(model.prepared.bound.graph)
    return Facts(model.graph, values, model.prepared.exact)


def changed(
    model: OpenModel, changes: Iterable[Change], removable: Nodes = is_constant
) -> OpenModel:
    """The model after ``changes``."""
    edit = ModelEdit(model)
    for change in changes:
        change(edit)
    return edit.opened(removable)


def with_most(
    model: OpenModel,
    timeline: Timeline,
    changes: Sequence[Change],
    accepts: Accepts,
    removable: Nodes = is_constant,
) -> tuple[OpenModel, Timeline, int] | None:
    """The model after as many changes as are accepted, simulated, and how many; None if none is.

    Halves are tried where the whole is not accepted, so that one bad change does not spoil the
    others.

    Args:
        model: the model, of which ``timeline`` is the simulation.
        timeline: before any change.
        changes: what may be done; any part of it.
        accepts: whether a timeline is good enough, given the one before.
        removable: nodes that go where the changes leave them without a reader.
    """
    accepted: list[Change] = []
    best: tuple[OpenModel, Timeline] | None = None
    waiting = [list(changes)] if changes else []
    while waiting:
        part = waiting.pop()
        after = changed(model, (*accepted, *part), removable)
        found = simulate(after.graph, timeline.session)
        if accepts(found, best[1] if best is not None else timeline):
            accepted += part
            best = (after, found)
        elif len(part) > 1:
            middle = len(part) // 2
            waiting += [part[middle:], part[:middle]]
    return None if best is None else (*best, len(accepted))
