"""The floor in words: what sets it, what could lower it, and where the next one lies.

One wording for all reports. A floor is certified for the graph that it was found for, with every
choice of a planner in it: order, recomputation, packed masks. What changes the graph (chunks,
state over the old values, fewer outputs) moves it; :func:`floor_report` says which of them could.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memplan.ir.graph import ABSENT, Graph
from memplan.simulate.floor import Floor, Pin, structural_floor
from memplan.simulate.timeline import Timeline
from memplan.units import format_bytes

_MOSTLY = 2  # a floor is that of the outputs if they are one of so many parts of it


@dataclass(frozen=True, slots=True)
class FloorReport:
    """Resident bytes are counted in all sizes.

    ``nbytes``: with workspace, which budgets are held against; ``tensor_bytes``: without.
    ``resident_bytes`` are part of both; ``reason``: what sets the rest. ``lowered_by``: the only
    moves that could lower it. ``next_bytes``: the lowest that it can be then, as ``next_reason``
    sets that.
    """

    nbytes: int
    tensor_bytes: int
    resident_bytes: int
    reason: str
    lowered_by: str
    next_bytes: int
    next_reason: str

    @property
    def line(self) -> str:
        """All of it as a sentence."""
        return f"floor {format_bytes(self.nbytes)}: {self.parts}"

    @property
    def parts(self) -> str:
        """What it is made of, what could lower it, and the next one."""
        return (
            f"{format_bytes(self.resident_bytes)} resident, the rest set by {self.reason}. To go "
            f"lower: {self.lowered_by}; the next limit is {format_bytes(self.next_bytes)} "
            f"({self.next_reason})"
        )

    def as_json(self) -> dict[str, object]:
        """What reports add to the floor itself."""
        return {
            "floor_lowered_by": self.lowered_by,
            "next_floor_with_workspace_bytes": self.next_bytes,
            "next_floor_reason": self.next_reason,
        }


def floor_report(
    floor: Floor,
    graph: Graph,
    timeline: Timeline,
    new_values: Mapping[str, str] | None = None,
    *,
    chunked: bool = False,
) -> FloorReport:
    """Describe a floor.

    Args:
        floor: of ``graph``.
        graph: with ``timeline``, any simulation of it.
        new_values: outputs that are new values of inputs, as far as they are known.
        chunked: ``--chunk`` was asked for already.
    """
    pin, resident = floor.loaded, timeline.resident_bytes
    outputs = _by_outputs(graph, pin)
    if outputs:
        following = structural_floor(graph, timeline, held=False).loaded
    else:
        largest = max((graph.tensors[t].nbytes for t in _own(graph, pin)), default=0)
        following = structural_floor(graph, timeline, below=largest).loaded
    return FloorReport(
        resident + floor.with_workspace,
        resident + floor.nbytes,
        resident,
        pin.describe(graph),
        _way(graph, outputs, new_values or {}, chunked),
        resident + following.nbytes,
        following.where(graph),
    )


def _own(graph: Graph, pin: Pin) -> list[int]:
    """What a node needs that is not held to the end anyway."""
    return [t for t in pin.tensors if not graph.tensors[t].is_output]


def _by_outputs(graph: Graph, pin: Pin) -> bool:
    """Whether it is mostly outputs, held to the end, that set a floor."""
    held = sum(graph.tensors[t].nbytes for t in pin.tensors if graph.tensors[t].is_output)
    return pin.node == ABSENT or _MOSTLY * held >= pin.nbytes


def _way(graph: Graph, outputs: bool, new_values: Mapping[str, str], chunked: bool) -> str:
    if outputs and new_values and graph.state is None:
        return "--state in-place, which updates weights where they lie"
    if outputs:
        return "fewer outputs (--wrt), or an optimizer in the step"
    if chunked:
        return "more chunks (--chunk N) or smaller dimensions"
    return "--chunk auto or smaller dimensions"
