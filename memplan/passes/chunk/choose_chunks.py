"""``chunk``: regions, or the last layers, in chunks, as far as the peak or the floor falls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from memplan.passes.change import facts_of
from memplan.passes.chunk.asked import NAME, NO_TIME, UNLIMITED, Room, reason_against
from memplan.passes.chunk.chunk_candidates import (
    LAYERS,
    REGIONS,
    Candidate,
    Choice,
    Regions,
    counts_of,
)
from memplan.passes.chunk.chunk_layers import layer_choices
from memplan.passes.chunk.chunk_state import State, chunked, sized, stated
from memplan.passes.chunk.outline import Estimate, Outline, Sizes, fall
from memplan.passes.graph_pass import Applied, peak_did_not_rise
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline

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
        start = sized(model, timeline)
        state, choices, note = _Chooser(self, start).result()
        if not choices:
            return Applied(model, note=note)
        return Applied(
            stated(state.model),
            "; ".join(choice.words for choice in choices),
            tuple(choice.decision for choice in choices),
        )


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

    def result(self) -> tuple[State, list[Choice], str]:
        """The model with the first choices that hold in simulation, and why there are none."""
        start = self.start
        for choices in self._layers() if self.asked.kind == LAYERS else self._with_regions([]):
            after = chunked(start, [choice.part for choice in choices])
            if is_lower(after, start, start) and peak_did_not_rise(after.timeline, start.timeline):
                return after, choices, ""
        return start, [], NO_TIME if self.late else self.note

    def _estimate(self, choices: Sequence[Choice]) -> Estimate | None:
        """What the choices come to; None where that cannot be, or there is no time for it."""
        added = sum(choice.part.added for choice in choices)
        if not self.asked.room.holds(len(self.graph.nodes) + added):
            self.late = True
            return None
        return self.outline.estimate([choice.part for choice in choices])

    def _better(self, choices: Sequence[Choice], before: Estimate) -> Estimate | None:
        """What the choices come to, where that is worth it."""
        after = self._estimate(choices)
        return after if after is not None and is_lower(after, before, self.whole) else None

    def _layers(self) -> Iterator[list[Choice]]:
        """Those that hold the budget, by the nodes that they add. Where none do: the most layers,
        in the fewest chunks of which twice as many bring little; with regions."""
        budget, forward = self.asked.budget_bytes, self.start.model.phases.forward
        every = layer_choices(self.facts, forward, self.whole, self.asked.count)
        if not every:
            self.note = "no layers divide into chunks with enough rows"
        for choice in every if budget else ():
            found = self._better([choice], self.whole)
            if found is not None and found.peak_bytes <= budget:
                yield [choice]
        best, chosen = self.whole, list[Choice]()
        for choice in sorted(every, key=lambda each: (-each.part.nodes, each.part.count)):
            found = self._better([choice], best)
            if found is not None:
                best, chosen = found, [choice]
        if chosen and not self.asked.count:
            yield from self._with_regions(chosen)
        elif chosen:
            yield chosen

    def _with_regions(self, choices: list[Choice]) -> Iterator[list[Choice]]:
        """One kind of regions after the other, each that which brings most, and then more chunks of
        each, as what bounded them may be gone; and again. Where these do not hold, fewer of them.
        """
        best = self._estimate(choices) if choices else self.whole
        for _ in range(_ROUNDS):
            if best is None or best.peak_bytes <= self.asked.budget_bytes:
                break
            found = self._best(choices, best) or self._refined(choices, best)
            if found is None:
                break
            choices, best = found
        for count in range(len(choices), 0, -1):
            yield choices[:count]

    def _best(
        self, choices: list[Choice], before: Estimate
    ) -> tuple[list[Choice], Estimate] | None:
        """The choices with the best regions of one kind; None if none are worth it."""
        taken = {n for each in choices for r in each.part.regions for n in r.uses}
        best: tuple[list[Choice], Estimate] | None = None
        for candidate in self.regions.around(before, taken):
            found = self._best_count(candidate, choices, before)
            if found is not None and (best is None or fall(found[1], best[1]) >= LEAST_GAIN):
                best = found
        return best

    def _best_count(
        self, candidate: Candidate, choices: list[Choice], before: Estimate
    ) -> tuple[list[Choice], Estimate] | None:
        """The fewest chunks of which twice as many bring no more; None if none bring enough."""
        counts = counts_of(self.graph, candidate.regions)
        if asked := self.asked.count:
            counts = (asked,) if candidate.divides(self.graph, asked) else ()
        if not counts:
            return None
        # What brings nothing brings nothing in any number, mostly.
        tried = min(counts, key=lambda count: abs(count - _TYPICAL))
        if self._better([*choices, candidate.choice(self.graph, tried)], before) is None:
            return None
        best: tuple[list[Choice], Estimate] | None = None
        for count in counts:
            more = [*choices, candidate.choice(self.graph, count)]
            after = self._better(more, before if best is None else best[1])
            if after is not None:
                best = more, after
            elif best is not None:
                break
        return best

    def _refined(
        self, choices: list[Choice], before: Estimate
    ) -> tuple[list[Choice], Estimate] | None:
        """The same regions in twice as many chunks, where that brings more by now; None where it
        does for none of them, or their number was asked for."""
        best: tuple[list[Choice], Estimate] | None = None
        if self.asked.count:
            return None
        for place, choice in enumerate(choices):
            counts = counts_of(self.graph, choice.part.regions)
            while choice.decision.kind == REGIONS and 2 * choice.part.count in counts:
                choice = choice.doubled()
                tried = [*choices[:place], choice, *choices[place + 1 :]]
                after = self._better(tried, before)
                if after is None:
                    break
                choices, before = best = tried, after
        return best


def is_lower(after: Sizes, before: Sizes, start: Sizes) -> bool:
    """Whether enough is gained, and neither the floor nor the peak at the start is exceeded; of the
    floor the constants that slices read are nothing."""
    return (
        fall(after, before) >= LEAST_GAIN
        and after.floor_bytes <= (1 + _NOTHING) * start.floor_bytes
        and after.peak_bytes <= start.peak_bytes
    )
