"""What a rewrite says beside its figures: one list, in the order in which reports show it."""

from __future__ import annotations

from memplan.api.rewrite.candidates import chunk_step
from memplan.api.rewrite.cheapest import Planned
from memplan.api.rewrite.finish import Proved
from memplan.api.rewrite.goal import Goal, Source
from memplan.api.rewrite.offload_rewrite import OffloadReport
from memplan.equivalence.prove import Equivalence
from memplan.equivalence.terms import IN_CHUNKS
from memplan.passes.chunk.asked import NAME as CHUNK
from memplan.planning.selections import selections
from memplan.units import counted

_REDRAWN = "random operators without a seed draw different numbers than the original"


def rewrite_notes(
    source: Source, proved: Proved, offload: OffloadReport | None, loaded: tuple[str, ...]
) -> tuple[str, ...]:
    """What to know of a result beside what was assumed of the graph.

    Args:
        source: the file that was read.
        proved: what was made of it.
        offload: what is copied to the host.
        loaded: what the runtime does to the new file when it loads it.
    """
    goal, planned = proved.goal, proved.planned
    return (
        *_offload_notes(goal, planned, offload),
        *((source.placement.note,) if source.placement.note else ()),
        *planned.candidate.variant.notes,
        *(planned.plain.notes if planned.plain else ()),
        *loaded,
        *source.notes,
        *proved.notes,
        *((_REDRAWN,) if proved.equivalence.redrawn else ()),
        *_chunk_notes(goal, planned, proved.equivalence),
        *_selection_notes(planned, goal),
        *_cost_notes(planned, goal),
    )


def _offload_notes(goal: Goal, planned: Planned, found: OffloadReport | None) -> tuple[str, ...]:
    """What is assumed of copies, where they were asked for."""
    if not goal.options.offload:
        return ()
    device = goal.costs.device
    rate = f"{device.host_bytes_per_second / 1e9:.1f} GB/s each way ({device.host_source})"
    price = (
        f"offload: the link to the host carries {rate}: assumed, not measured; extra time counts "
        "both copies whenever a tensor is read back, and nothing beside them: an upper bound"
    )
    if found is None:
        return (f"{price}; nothing is offloaded at that price",)
    return (
        "offload is EXPERIMENTAL: order, streams and bytes were checked on the CUDA provider "
        "without a GPU; no GPU has measured results or time",
        price,
        f"offload: {found.host_bytes:,} B of pinned host memory on top; the runtime's arena for it "
        "may hold up to twice as much",
    )


def _chunk_notes(goal: Goal, planned: Planned, equivalence: Equivalence) -> tuple[str, ...]:
    """What chunks may change and what their copies take; or why there are none, though they were
    asked for."""
    if goal.chunk is None:
        return ()
    place = chunk_step(planned.steps)
    if place is None:
        return (f"no chunks: {_why_no_chunks(goal, planned)}",)
    return (*_chunk_time_notes(planned, place), *_rounding_notes(equivalence))


def _why_no_chunks(goal: Goal, planned: Planned) -> str:
    unchanged = (step.note for step in planned.steps if step.name == CHUNK)
    if note := next(unchanged, ""):
        return note
    if not planned.plan.extra_cost_fraction and not goal.options.budget.is_lowest:
        return "not needed: the budget holds"
    return f"tried {'; '.join(planned.tried)}"


def _chunk_time_notes(planned: Planned, place: int) -> tuple[str, ...]:
    steps = planned.steps
    before = (steps[place - 1].model if place else planned.candidate.model).graph
    added = len(steps[place].model.graph.nodes) - len(before.nodes)
    found = (
        f"chunks: {counted(added, 'more node')}; their starts, slices, joins and smaller products "
        f"take {100 * planned.chunk_cost:.2f}% more time (estimated), within that above"
    )
    if len(planned.tried) == 1:
        return (found,)
    best = f"chunks: the best of {len(planned.tried)} ({'; '.join(planned.tried)})"
    if planned.least_cost:
        best += f"; certified: no plan of these costs less than {100 * planned.least_cost:.2f}%"
    return (found, best)


def _rounding_notes(equivalence: Equivalence) -> tuple[str, ...]:
    if IN_CHUNKS not in equivalence.rounding:
        return ()
    wholes = counted(len(equivalence.rounded), "tensor")
    return (
        f"chunks: {wholes} put together from them ('{equivalence.rounded[0]}'...) may differ in "
        "the last bits, as additions may be in another order; validate judges with a tolerance",
    )


def _selection_notes(planned: Planned, goal: Goal) -> tuple[str, ...]:
    """What became of what ``--keep`` and ``--recompute`` select."""
    graph, again = planned.model.graph, planned.plan.recomputed
    found = []
    for each in selections(goal.selectors, planned.model):
        makers = [graph.nodes[graph.tensors[t].producer].name for t in each.tensors]
        recomputed = sum(name in again for name in makers)
        words = f"{counted(len(makers), 'tensor')} selected, {recomputed} recomputed"
        found.append(f"{each.selector.option} '{each.selector.text}': {words}")
    return tuple(found)


def _cost_notes(planned: Planned, goal: Goal) -> tuple[str, ...]:
    """How many nodes were measured, where any could have been."""
    costs, graph = goal.costs, planned.model.graph
    if costs.source == "estimate":
        return ()
    whole, measured = len(graph.nodes), costs.measured_nodes(graph)
    origin = f"in {costs.source}"
    if measured == whole:
        every = "all " if whole > 1 else ""
        return (f"seconds of {every}{counted(whole, 'node')} measured ({origin})",)
    scale = ", on the scale of the measured ones" if costs.scale else ""
    return (
        f"seconds of {measured} of {whole} nodes measured ({origin}), of {whole - measured} "
        f"estimated{scale}",
    )
