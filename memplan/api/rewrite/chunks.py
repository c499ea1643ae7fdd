"""What ``rewrite`` says of chunks."""

from __future__ import annotations

from memplan.api.rewrite.cheapest import Planned
from memplan.api.rewrite.loops import step_seconds
from memplan.equivalence.prove import Equivalence
from memplan.ir.graph import Graph
from memplan.passes.chunk.choose import NONE, Chunk
from memplan.passes.manager import PassStep
from memplan.units import counted


def chunk_notes(asked: str, planned: Planned, equivalence: Equivalence) -> tuple[str, ...]:
    """What chunks may change and what their copies take; or why there are none, though they were
    asked for."""
    if asked == NONE:
        return ()
    steps = planned.steps
    place = next((k for k, step in enumerate(steps) if step.name == Chunk.name), None)
    if place is None:
        return ("no chunks: the proof does not follow them in this graph",)
    if not steps[place].changed:
        return (f"no chunks: {steps[place].note}",)
    before = steps[place - 1].model.graph if place else planned.candidate.model.graph
    return (_time_note(planned, before, steps[place]), *_rounding_notes(equivalence))


def _time_note(planned: Planned, before: Graph, step: PassStep) -> str:
    costs, after = planned.costs, step.model.graph
    more = step_seconds(costs, after) / step_seconds(costs, before) - 1
    added = len(after.nodes) - len(before.nodes)
    return (
        f"chunks: {counted(added, 'more node')}; their starts, slices and joins take "
        f"{100 * more:.2f}% more time (estimated), on top of what is recomputed"
    )


def _rounding_notes(equivalence: Equivalence) -> tuple[str, ...]:
    if not equivalence.rounded:
        return ()
    wholes = counted(len(equivalence.rounded), "tensor")
    return (
        f"chunks: {wholes} put together from them ('{equivalence.rounded[0]}'...) may differ in "
        "the last bits, as additions may be in another order; validate judges with a tolerance",
    )
