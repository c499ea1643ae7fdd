"""What the user asks of chunks, and when there are none."""

from __future__ import annotations

from dataclasses import dataclass

from memplan.deadline import Deadline
from memplan.errors import UsageError
from memplan.passes.chunk.part import COUNTS, LAYERS, REGIONS
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline

NAME = "chunk"
"""Of every pass that makes chunks."""
NO_TIME = "time was over"
AUTO, NONE = "auto", "none"
FEW = (2, 4)
"""Chunks of layers that are tried beside the number that holds a budget by itself: products of more
rows are faster, and recomputation may do the rest."""
_BY_FLOOR = (REGIONS, LAYERS)
OLDEST_OPSET = 13
"""Before it, axes and bounds are attributes, and Softmax flattens."""


@dataclass(frozen=True, slots=True)
class Room:
    """The time that there is for chunks: until ``deadline``, less the ``seconds`` that a graph
    takes for every node once it is chosen."""

    deadline: Deadline
    seconds: float

    def holds(self, nodes: int) -> bool:
        """Whether there is time for a graph of so many nodes."""
        return self.deadline.left > nodes * self.seconds


UNLIMITED = Room(Deadline(), 0.0)


@dataclass(frozen=True, slots=True)
class Asked:
    """``kinds``: what may go into chunks, ``REGIONS`` or ``LAYERS``; ``optional``: only
    where it makes a plan cheaper; ``count``: how many chunks, 0: as many as are good."""

    kinds: tuple[str, ...]
    optional: bool = False
    count: int = 0

    def tries(self, lowest: bool) -> tuple[tuple[str, int], ...]:
        """Each kind, with how many chunks of it are to be tried (0: as many as are good). What
        holds a budget by itself comes first; where the least peak is asked for (``lowest``), what
        lowers the floor most does, and few chunks, which only take less time, are not tried."""
        if lowest:
            return tuple((kind, self.count) for kind in sorted(self.kinds, key=_BY_FLOOR.index))
        few = [(LAYERS, count) for count in FEW] if self.optional else []
        first, *others = [(kind, self.count) for kind in self.kinds]
        return (first, *few, *others)


def parse_chunks(text: str) -> Asked | None:
    """``auto``, ``regions``, ``layers`` or a number of chunks; None: no chunks.

    Raises:
        UsageError: it is none of these, nor ``none``.
    """
    if text in ("", NONE):
        return None
    if text == AUTO:
        return Asked((LAYERS, REGIONS), optional=True)
    if text in (REGIONS, LAYERS):
        return Asked((text,))
    if not text.isdecimal() or int(text) < COUNTS[0]:
        raise UsageError(
            f"expected a number of chunks, got '{text}'",
            f"{AUTO}, {REGIONS}, {LAYERS}, {NONE} or a number from {COUNTS[0]} on",
        )
    return Asked((REGIONS, LAYERS), count=int(text))


def reason_against(model: OpenModel, timeline: Timeline, budget_bytes: int) -> str:
    """Why a model gets no chunks; empty if it may."""
    if not timeline.session.priority_order or timeline.session.reuse:
        return "a default session chooses its own order"
    if model.graph.opset < OLDEST_OPSET or model.prepared.bounded:
        return "the opset is too old, or shapes are not known"
    if timeline.peak_with_workspace_bytes <= budget_bytes:
        return "not needed: within the budget"
    return ""
