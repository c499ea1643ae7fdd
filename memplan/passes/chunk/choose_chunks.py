"""``chunk``: regions in chunks, as far as the peak or the floor falls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from memplan.passes.chunk.asked import NAME, NO_TIME, REGIONS, UNLIMITED, Room, reason_against
from memplan.passes.chunk.chunk_candidates import Candidate, again, candidates
from memplan.passes.chunk.chunk_state import State, chunked, sized, stated
from memplan.passes.graph_pass import Applied, peak_did_not_rise
from memplan.planning.plan_file import ChunkDecision
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline

LEAST_GAIN = 0.01
"""By what share peak and floor must fall, together; for twice as many chunks, too."""
# Smaller tensors, as a share of the floor, are not looked at.
_LEAST_SEED = 0.02
_ROUNDS = 8
_TYPICAL = 8


@dataclass(frozen=True, slots=True)
class Choice:
    """Regions, into how many chunks they go, and what they are in words."""

    candidate: Candidate
    count: int
    words: str

    def __str__(self) -> str:
        return f"{self.words} in {self.count} chunks"

    @property
    def decision(self) -> ChunkDecision:
        """What a replay needs of it."""
        return ChunkDecision(REGIONS, self.candidate.seeds, self.candidate.axis, self.count)


@dataclass(frozen=True, slots=True)
class ChunkRegions:
    """``count``: chunks of every region, 0: what saves most. ``budget_bytes``: a peak that is low
    enough (0: none is). ``room``: the time for the choice, which is the best of what was tried by
    then."""

    name: ClassVar[str] = NAME
    kind: ClassVar[str] = REGIONS
    count: int = 0
    budget_bytes: int = 0
    room: Room = UNLIMITED

    def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
        """The model with regions in chunks, as far as peak or floor falls and neither rises.

        What goes on is found by simulation: of the regions around the largest tensors, those and so
        many chunks that bring most. Afterwards more chunks are tried for each, as what bounded them
        may be gone.
        """
        reason = reason_against(model, timeline, self.budget_bytes)
        if reason:
            return Applied(model, note=reason)
        start = sized(model, timeline)
        state, choices = self._chosen(start)
        if choices and not self.count:
            state, choices = self._refined(start, state, choices)
        if not choices:
            in_time = self._in_time(state)
            return Applied(model, note="no region saves anything" if in_time else NO_TIME)
        return Applied(
            stated(state.model),
            "; ".join(str(choice) for choice in choices),
            tuple(choice.decision for choice in choices),
        )

    def _in_time(self, state: State) -> bool:
        return self.room.holds(len(state.model.graph.nodes))

    def _chosen(self, start: State) -> tuple[State, list[Choice]]:
        """One kind of regions after the other, each that which brings most."""
        state, choices = start, list[Choice]()
        while len(choices) < _ROUNDS and state.peak_bytes > self.budget_bytes:
            found = self._best(state, start)
            if found is None:
                break
            state, choice = found
            choices.append(choice)
        return state, choices

    def _best(self, state: State, start: State) -> tuple[State, Choice] | None:
        """The best change of one kind of regions; None if none is worth it."""
        best: tuple[State, Choice] | None = None
        for candidate in candidates(state, _LEAST_SEED * state.floor_bytes):
            if not self._in_time(state):
                break
            found = self._best_count(candidate, state, start)
            if found is not None and (best is None or found[0].gain_over(best[0]) >= LEAST_GAIN):
                best = found
        return best

    def _best_count(
        self, candidate: Candidate, state: State, start: State
    ) -> tuple[State, Choice] | None:
        """The fewest chunks of which twice as many bring no more; None if none bring enough."""
        graph = state.model.graph
        counts = candidate.counts(graph)
        if self.count:
            counts = (self.count,) if candidate.divides(graph, self.count) else ()
        if not counts:
            return None
        # What brings nothing brings nothing in any number, mostly.
        tried = min(counts, key=lambda count: abs(count - _TYPICAL))
        if not is_lower(chunked(state, candidate.regions, tried), state, start):
            return None
        best: tuple[State, Choice] | None = None
        for count in counts:
            if not self._in_time(state):
                break
            after = chunked(state, candidate.regions, count)
            if is_lower(after, state if best is None else best[0], start):
                best = after, Choice(candidate, count, candidate.describe(graph))
            elif best is not None:
                break
        return best

    def _refined(
        self, start: State, state: State, choices: list[Choice]
    ) -> tuple[State, list[Choice]]:
        """The same regions in twice as many chunks, where that brings more by now."""
        for place in range(len(choices)):
            while self._in_time(state):
                choice = choices[place]
                more = Choice(choice.candidate, 2 * choice.count, choice.words)
                tried = [*choices[:place], more, *choices[place + 1 :]]
                after = _replayed(start, tried)
                if after is None or not is_lower(after, state, start):
                    break
                state, choices = after, tried
        return state, choices


def is_lower(after: State, before: State, start: State) -> bool:
    """Whether enough is gained, and neither the floor nor the peak at the start is exceeded."""
    if after.gain_over(before) < LEAST_GAIN or after.floor_bytes > start.floor_bytes:
        return False
    return peak_did_not_rise(after.timeline, start.timeline)


def _replayed(start: State, choices: Sequence[Choice]) -> State | None:
    """The model with all choices, from the start; None where one cannot be had."""
    state = start
    for choice in choices:
        found = again(state, choice.candidate)
        if found is None or choice.count not in found.counts(state.model.graph):
            return None
        state = chunked(state, found.regions, choice.count)
    return state
