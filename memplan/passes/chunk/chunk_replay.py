"""``chunk`` once more: what a plan put into chunks, without looking for anything better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from memplan.errors import PlanError
from memplan.ir.graph_facts import Facts
from memplan.passes.change import facts_of
from memplan.passes.chunk.asked import NAME, reason_against
from memplan.passes.chunk.chunk_candidates import LAYERS, again
from memplan.passes.chunk.chunk_state import chunked, sized, stated
from memplan.passes.chunk.chunk_writer import Part
from memplan.passes.chunk.region import Region
from memplan.passes.chunk.turn import turn_again
from memplan.passes.graph_pass import Applied
from memplan.planning.plan_file import EDITED, ChunkDecision
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline
from memplan.units import counted


@dataclass(frozen=True, slots=True)
class ChunkReplay:
    """``decisions``: what went into chunks, in the order in which it did."""

    name: ClassVar[str] = NAME
    decisions: Sequence[ChunkDecision]

    def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
        """The model with the same parts in as many chunks.

        Raises:
            PlanError: it has no such parts, or they do not divide.
        """
        if reason := reason_against(model, timeline, 0):
            return Applied(model, note=reason)
        state = sized(model, timeline)
        facts, parts, taken = facts_of(state.model), list[Part](), set[int]()
        for place, decision in enumerate(self.decisions):
            regions = _found(facts, decision)
            nodes = [node for region in regions for node in region.uses]
            if not regions or not taken.isdisjoint(nodes) or len({*nodes}) < len(nodes):
                raise PlanError(
                    f"the plan's chunks[{place}]: the graph has no such parts, or they do not "
                    "divide",
                    EDITED,
                )
            taken.update(nodes)
            parts.append(Part(regions, decision.count))
        state = chunked(state, parts)
        note = f"{counted(len(self.decisions), 'part')}, as planned"
        return Applied(stated(state.model), note, tuple(self.decisions), judged=True)


def _found(facts: Facts, decision: ChunkDecision) -> tuple[Region, ...]:
    """The regions of a decision that divide into as many chunks; empty where they are not there."""
    if decision.kind == LAYERS:
        found = _layers(facts, decision)
    else:
        found = again(facts, decision.seeds, decision.axis)
    count = decision.count
    divides = count > 1 and all(region.divisor(facts.graph) % count == 0 for region in found)
    return found if divides else ()


def _layers(facts: Facts, decision: ChunkDecision) -> tuple[Region, ...]:
    graph = facts.graph
    seed = graph.tensor_named(decision.seeds[0]) if decision.seeds else None
    places = {node.name: node.id for node in graph.nodes}
    first, last = (places.get(name or "") for name in (decision.first, decision.last))
    if seed is None or first is None or last is None or decision.axis >= len(seed.shape):
        return ()
    region = turn_again(facts, seed.id, decision.axis, first, last)
    return () if region is None else (region,)
