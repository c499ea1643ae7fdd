"""``chunk`` of layers: the last ones, forward and backward together, as many as a budget needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from memplan.deadline import Deadline
from memplan.ir.graph import Graph
from memplan.passes.change import facts_of
from memplan.passes.chunk.asked import LAYERS, NAME, NO_DEADLINE, NO_TIME, reason_against
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
    none is). ``deadline``: see :class:`~memplan.passes.chunk.choose_chunks.ChunkRegions`."""

    name: ClassVar[str] = NAME
    kind: ClassVar[str] = LAYERS
    count: int = 0
    budget_bytes: int = 0
    deadline: Deadline = NO_DEADLINE

    def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
        """The model with as few nodes more as it takes to hold the budget. Where none are enough:
        with all layers, in the fewest chunks of which twice as many bring little."""
        reason = reason_against(model, timeline, self.budget_bytes)
        if reason:
            return Applied(model, note=reason)
        start = sized(model, timeline)
        cuts = _cuts(start, self.count)
        found = self._cheapest(start, cuts) or self._lowest(start, cuts)
        if self.deadline.passed:
            return Applied(model, note=NO_TIME)
        if found is None:
            return Applied(model, note="no layers divide into chunks with enough rows")
        state, cut = found
        graph = start.model.graph
        return Applied(stated(state.model), cut.describe(graph), (cut.decision(graph),))

    def _cheapest(self, start: State, cuts: Sequence[Cut]) -> tuple[State, Cut] | None:
        """What adds the fewest nodes of all that hold the budget; None if nothing does."""
        most = max(cuts, key=lambda cut: cut.added, default=None)
        if most is None or not self.budget_bytes:
            return None
        last = chunked(start, [most.turn.region], most.count)
        if last.peak_bytes > self.budget_bytes:
            return None
        for cut in sorted(cuts, key=lambda cut: cut.added):
            if self.deadline.passed:
                break
            state = last if cut is most else chunked(start, [cut.turn.region], cut.count)
            if state.peak_bytes <= self.budget_bytes and is_lower(state, start, start):
                return state, cut
        return None

    def _lowest(self, start: State, cuts: Sequence[Cut]) -> tuple[State, Cut] | None:
        """All layers, in the fewest chunks of which twice as many bring little."""
        best: tuple[State, Cut] | None = None
        largest = max((len(cut.turn.region.uses) for cut in cuts), default=0)
        for cut in cuts:
            if self.deadline.passed:
                break
            if len(cut.turn.region.uses) == largest:
                after = chunked(start, [cut.turn.region], cut.count)
                if not is_lower(after, best[0] if best else start, start):
                    break
                best = after, cut
        return best


def _cuts(state: State, count: int) -> list[Cut]:
    """What layers there are along an axis, in how many chunks each."""
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
                return cuts
    return []


def _counts(graph: Graph, turn: Turn, count: int) -> Iterator[int]:
    divisor = turn.region.divisor(graph)
    if count:
        yield from [count] if divisor % count == 0 else []
        return
    most = turn.region.most_chunks(graph)
    yield from (each for each in COUNTS if each <= most and divisor % each == 0)
