"""``chunk`` of layers: the last ones, forward and backward together, as many as a budget needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from memplan.ir.graph import Graph
from memplan.passes.change import facts_of
from memplan.passes.chunk.asked import LAYERS, NAME, NO_TIME, UNLIMITED, Room, reason_against
from memplan.passes.chunk.choose_chunks import is_lower
from memplan.passes.chunk.chunk_candidates import COUNTS, seeds
from memplan.passes.chunk.chunk_state import State, chunked, sized, stated
from memplan.passes.chunk.turn import Turn, turns
from memplan.passes.graph_pass import Applied
from memplan.planning.plan_file import ChunkDecision
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline
from memplan.units import counted

# Smaller tensors, as a share of the floor, are not followed.
_LEAST_SEED = 0.02


@dataclass(frozen=True, slots=True)
class Cut:
    """Layers in so many chunks, along ``axis`` of the tensor ``seed`` (ids)."""

    turn: Turn
    count: int
    seed: int
    axis: int

    @property
    def added(self) -> int:
        """About how many nodes it adds."""
        return len(self.turn.region.uses) * (self.count - 1)

    def decision(self, graph: Graph) -> ChunkDecision:
        """What a replay needs of it."""
        first, last = (graph.nodes[place].name for place in (self.turn.first, self.turn.last))
        seed = graph.tensors[self.seed].name
        return ChunkDecision(LAYERS, (seed,), self.axis, self.count, first, last)

    def describe(self, graph: Graph) -> str:
        """What it is, in a few words."""
        first = graph.nodes[self.turn.first].name
        nodes = counted(len(self.turn.region.uses), "node")
        return f"{nodes} from '{first}' on, forward and backward, in {self.count} chunks"


@dataclass(frozen=True, slots=True)
class ChunkLayers:
    """``count`` chunks, 0: as many as are good. ``budget_bytes``: a peak that is low enough (0:
    none is). ``room``: see :class:`~memplan.passes.chunk.choose_chunks.ChunkRegions`."""

    name: ClassVar[str] = NAME
    kind: ClassVar[str] = LAYERS
    count: int = 0
    budget_bytes: int = 0
    room: Room = UNLIMITED

    def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
        """The model with as few nodes more as it takes to hold the budget. Where none are enough:
        with all layers, in the fewest chunks of which twice as many bring little."""
        reason = reason_against(model, timeline, self.budget_bytes)
        if reason:
            return Applied(model, note=reason)
        start = sized(model, timeline)
        every = _cuts(start, self.count)
        cuts = [cut for cut in every if self._in_time(start, cut)]
        if not cuts:
            none = "no layers divide into chunks with enough rows"
            return Applied(model, note=NO_TIME if every else none)
        made = cache(lambda place: chunked(start, [cuts[place].turn.region], cuts[place].count))
        place = self._cheapest(start, cuts, made)
        if place is None:
            place = self._lowest(start, cuts, made)
        if place is None:
            return Applied(model, note="no layers save anything")
        cut, graph = cuts[place], start.model.graph
        return Applied(stated(made(place).model), cut.describe(graph), (cut.decision(graph),))

    def _in_time(self, start: State, cut: Cut) -> bool:
        return self.room.holds(len(start.model.graph.nodes) + cut.added)

    def _cheapest(
        self, start: State, cuts: Sequence[Cut], made: Callable[[int], State]
    ) -> int | None:
        """The cut that adds the fewest nodes of all that hold the budget; None if not even the
        last does, which adds most.

        ``made``: the model with the cut of a place.
        """
        last = len(cuts) - 1
        if not self.budget_bytes or made(last).peak_bytes > self.budget_bytes:
            return None
        for place, cut in enumerate(cuts):
            if not self._in_time(start, cut):
                return last
            state = made(place)
            if state.peak_bytes <= self.budget_bytes and is_lower(state, start, start):
                return place
        return None

    def _lowest(
        self, start: State, cuts: Sequence[Cut], made: Callable[[int], State]
    ) -> int | None:
        """All layers, in the fewest chunks of which twice as many bring little."""
        best: int | None = None
        largest = max(len(cut.turn.region.uses) for cut in cuts)
        for place, cut in enumerate(cuts):
            if len(cut.turn.region.uses) < largest:
                continue
            before = start if best is None else made(best)
            if not self._in_time(start, cut) or not is_lower(made(place), before, start):
                break
            best = place
        return best


def _cuts(state: State, count: int) -> list[Cut]:
    """What layers there are along an axis, in how many chunks each; what adds most comes last."""
    graph, forward = state.model.graph, state.model.phases.forward
    facts = facts_of(state.model)
    for seed in seeds(state, _LEAST_SEED * state.floor_bytes):
        for axis in range(len(graph.tensors[seed].shape)):
            found = list(turns(facts, forward, seed, axis))
            cuts = [
                Cut(turn, each, seed, axis)
                for turn in found
                for each in _counts(graph, turn, count)
            ]
            if cuts:
                return sorted(cuts, key=lambda cut: cut.added)
    return []


def _counts(graph: Graph, turn: Turn, count: int) -> Iterator[int]:
    divisor = turn.region.divisor(graph)
    if count:
        yield from [count] if divisor % count == 0 else []
        return
    most = turn.region.most_chunks(graph)
    yield from (each for each in COUNTS if each <= most and divisor % each == 0)
