"""What ``rewrite`` says of chunks."""

from __future__ import annotations

from memplan.api.rewrite.cheapest import Planned, chunk_step
from memplan.api.rewrite.goal import Goal
from memplan.equivalence.prove import Equivalence
from memplan.equivalence.terms import IN_CHUNKS
from memplan.passes.chunk.asked import NAME, NONE
from memplan.units import counted


def chunk_notes(goal: Goal, planned: Planned, equivalence: Equivalence) -> tuple[str, ...]:
    """What chunks may change and what their copies take; or why there are none, though they were
    asked for."""
    if goal.options.chunk in ("", NONE):
        return ()
    if goal.chunk is None:
        return ("no chunks: the proof does not follow them in this graph",)
    place = chunk_step(planned.steps)
    if place is None:
        return (f"no chunks: {_why_none(goal, planned)}",)
    return (*_time_notes(planned, place), *_rounding_notes(equivalence))


def _why_none(goal: Goal, planned: Planned) -> str:
    """Of a plan without chunks."""
    unchanged = (step.note for step in planned.steps if step.name == NAME)
    if (note := next(unchanged, "")) or not goal.chunk:
        return note
    if not planned.plan.extra_cost_fraction and not goal.lowest:
        return "not needed: the budget holds"
    return f"tried {'; '.join(planned.tried)}"


def _time_notes(planned: Planned, place: int) -> tuple[str, ...]:
    steps = planned.steps
    before = (steps[place - 1].model if place else planned.candidate.model).graph
    added = len(steps[place].model.graph.nodes) - len(before.nodes)
    found = (
        f"chunks: {counted(added, 'more node')}; their starts, slices and joins take "
        f"{100 * planned.chunk_cost:.2f}% more time (estimated), within that above"
    )
    if len(planned.tried) == 1:
        return (found,)
    return (found, f"chunks: the best of {len(planned.tried)} ({'; '.join(planned.tried)})")


def _rounding_notes(equivalence: Equivalence) -> tuple[str, ...]:
    if IN_CHUNKS not in equivalence.rounding:
        return ()
    wholes = counted(len(equivalence.rounded), "tensor")
    return (
        f"chunks: {wholes} put together from them ('{equivalence.rounded[0]}'...) may differ in "
        "the last bits, as additions may be in another order; validate judges with a tolerance",
    )
