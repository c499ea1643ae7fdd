"""``chunk``: regions, or the last layers, in chunks, as far as the peak or the floor falls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from memplan.errors import PlanError
from memplan.passes.change import facts_of
from memplan.passes.chunk.asked import NAME, NO_TIME, UNLIMITED, Room, reason_against
from memplan.passes.chunk.chunk_candidates import Regions, again, layers
from memplan.passes.chunk.chunk_state import State, chunked, sized, stated
from memplan.passes.chunk.outline import Estimate, Outline, Sizes, fall
from memplan.passes.chunk.part import LAYERS, REGIONS, Part
from memplan.passes.graph_pass import Applied, peak_did_not_rise
from memplan.planning.plan_file import EDITED, ChunkDecision
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline
from memplan.units import counted

LEAST_GAIN = 0.01
"""By what share peak and floor must fall, together; for twice as many chunks, too."""
_NOTHING = 1e-3
_ROUNDS = 8
_TYPICAL = 8
_NONE: dict[str, str] = {
    REGIONS: "no region saves anything",
    LAYERS: "no layers save anything",
}


@dataclass(frozen=True, slots=True)
class Chunks:
    """``count``: chunks of every part, 0: what saves most. ``budget_bytes``: a peak that is low
    enough (0: none is). ``room``: the time for what is chosen. ``kind``: regions alone, or layers,
    and regions in what is left of the graph where that is not enough.

    What goes into chunks is chosen by estimates from the graph as it is
    (:mod:`memplan.passes.chunk.outline`), so only what is chosen is written, and simulated: the
    choice depends on the graph alone, and on whether there is time to write it.
    """

    name: ClassVar[str] = NAME
    count: int = 0
    budget_bytes: int = 0
    room: Room = UNLIMITED
    kind: str = REGIONS

    def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
        """The model with what was chosen in chunks; neither peak nor floor rises."""
        reason = reason_against(model, timeline, self.budget_bytes)
        if reason:
            return Applied(model, note=reason)
        state, parts, note = _Chooser(self, sized(model, timeline)).result()
        if not parts:
            return Applied(model, note=note)
        return Applied(stated(state.model), note, tuple(part.decision for part in parts))


@dataclass(frozen=True, slots=True)
class ChunkReplay:
    """What a plan put into chunks, once more. ``decisions``: in the order in which it did."""

    name: ClassVar[str] = NAME
    decisions: Sequence[ChunkDecision]

    def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
        """The model with the same parts in as many chunks.

        Raises:
            PlanError: it has no such parts, or they do not divide.
        """
        if reason := reason_against(model, timeline, 0):
            return Applied(model, note=reason)
        state, taken, parts = sized(model, timeline), set[int](), list[Part]()
        facts = facts_of(state.model)
        for place, decision in enumerate(self.decisions):
            part = again(facts, decision)
            nodes = [] if part is None else [n for region in part.regions for n in region.uses]
            if part is None or not taken.isdisjoint(nodes) or len({*nodes}) < len(nodes):
                raise PlanError(
                    f"the plan's chunks[{place}]: the graph has no such parts, or they do not "
                    "divide",
                    EDITED,
                )
            taken.update(nodes)
            parts.append(part)
        note = f"{counted(len(parts), 'part')}, as planned"
        written = stated(chunked(state, parts).model)
        return Applied(written, note, tuple(self.decisions), judged=True)


class _Chooser:
    """The choice for one model."""

    def __init__(self, asked: Chunks, start: State) -> None:
        self.asked, self.start, self.graph = asked, start, start.model.graph
        self.outline = Outline(self.graph, start.timeline)
        self.facts = facts_of(start.model)
        self.regions = Regions(self.facts)
        self.late, self.note = False, _NONE[asked.kind]
        whole = self.outline.estimate(())
        assert whole is not None, "a graph without blocks has an order"
        self.whole = whole

    def result(self) -> tuple[State, list[Part], str]:
        """The model with the first parts that hold in simulation, and their words; or why there are
        none."""
        start = self.start
        for parts in self._layers() if self.asked.kind == LAYERS else self._with_regions([]):
            after = chunked(start, parts)
            if is_lower(after, start, start) and peak_did_not_rise(after.timeline, start.timeline):
                return after, parts, "; ".join(part.words(self.graph) for part in parts)
        return start, [], NO_TIME if self.late else self.note

    def _estimate(self, parts: Sequence[Part]) -> Estimate | None:
        """What the parts come to; None where that cannot be, or there is no time for it."""
        added = sum(part.added for part in parts)
        if not self.asked.room.holds(len(self.graph.nodes) + added):
            self.late = True
            return None
        return self.outline.estimate(parts)

    def _better(self, parts: Sequence[Part], before: Estimate) -> Estimate | None:
        """What the parts come to, where that is worth it."""
        after = self._estimate(parts)
        return after if after is not None and is_lower(after, before, self.whole) else None

    def _layers(self) -> Iterator[list[Part]]:
        """Those that hold the budget, by the nodes that they add. Where none do: the most layers,
        in the fewest chunks of which twice as many bring little; with regions."""
        budget, forward = self.asked.budget_bytes, self.start.model.phases.forward
        every = layers(self.facts, forward, self.whole, self.asked.count)
        if not every:
            self.note = "no layers divide into chunks with enough rows"
        for part in every if budget else ():
            found = self._better([part], self.whole)
            if found is not None and found.peak_bytes <= budget:
                yield [part]
        best, chosen = self.whole, list[Part]()
        for part in sorted(every, key=lambda each: (-each.nodes, each.count)):
            found = self._better([part], best)
            if found is not None:
                best, chosen = found, [part]
        if chosen and not self.asked.count:
            yield from self._with_regions(chosen)
        elif chosen:
            yield chosen

    def _with_regions(self, parts: list[Part]) -> Iterator[list[Part]]:
        """One kind of regions after the other, each that which brings most, and then more chunks of
        each, as what bounded them may be gone; and again. Where these do not hold, fewer of them.
        """
        best = self._estimate(parts) if parts else self.whole
        for _ in range(_ROUNDS):
            if best is None or best.peak_bytes <= self.asked.budget_bytes:
                break
            found = self._best(parts, best) or self._refined(parts, best)
            if found is None:
                break
            parts, best = found
        for count in range(len(parts), 0, -1):
            yield parts[:count]

    def _best(self, parts: list[Part], before: Estimate) -> tuple[list[Part], Estimate] | None:
        """The parts with the best regions of one kind; None if none are worth it."""
        taken = {n for part in parts for region in part.regions for n in region.uses}
        best: tuple[list[Part], Estimate] | None = None
        for candidate in self.regions.around(before, taken):
            found = self._best_count(candidate, parts, before)
            if found is not None and (best is None or fall(found[1], best[1]) >= LEAST_GAIN):
                best = found
        return best

    def _best_count(
        self, candidate: Part, parts: list[Part], before: Estimate
    ) -> tuple[list[Part], Estimate] | None:
        """The fewest chunks of which twice as many bring no more; None if none bring enough."""
        counts = candidate.counts(self.graph, self.asked.count)
        if not counts:
            return None
        # What brings nothing brings nothing in any number, mostly.
        tried = min(counts, key=lambda count: abs(count - _TYPICAL))
        if self._better([*parts, candidate.into(tried)], before) is None:
            return None
        best: tuple[list[Part], Estimate] | None = None
        for count in counts:
            more = [*parts, candidate.into(count)]
            after = self._better(more, before if best is None else best[1])
            if after is not None:
                best = more, after
            elif best is not None:
                break
        return best

    def _refined(self, parts: list[Part], before: Estimate) -> tuple[list[Part], Estimate] | None:
        """The same regions in twice as many chunks, where that brings more by now; None where it
        does for none of them, or their number was asked for."""
        best: tuple[list[Part], Estimate] | None = None
        if self.asked.count:
            return None
        for place, part in enumerate(parts):
            counts = part.counts(self.graph)
            while part.kind == REGIONS and 2 * part.count in counts:
                part = part.into(2 * part.count)
                tried = [*parts[:place], part, *parts[place + 1 :]]
                after = self._better(tried, before)
                if after is None:
                    break
                parts, before = best = tried, after
        return best


def is_lower(after: Sizes, before: Sizes, start: Sizes) -> bool:
    """Whether enough is gained, and neither the floor nor the peak at the start is exceeded; of the
    floor the constants that slices read are nothing."""
    return (
        fall(after, before) >= LEAST_GAIN
        and after.floor_bytes <= (1 + _NOTHING) * start.floor_bytes
        and after.peak_bytes <= start.peak_bytes
    )
