"""Where the next values of weights and moments lie, in words."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from memplan.api.state_modes import state_report
from memplan.ir.graph import Graph
from memplan.simulate.timeline import Timeline
from memplan.units import counted, format_bytes

if TYPE_CHECKING:
    from memplan.api.analysis import Analysis

_REASONS_SHOWN = 3
AS_TRAINED = "as memplan.Trainer binds it (--state apart: for a session of your own)"


def doubt_lines(analysis: Analysis) -> list[str]:
    """What is odd about the inputs and outputs of a step whose state is bound."""
    if analysis.graph.state is None or analysis.contract is None:
        return []
    return list(analysis.contract.notes)


def state_lines(graph: Graph) -> list[str]:
    """What is made over old values, and what is not and why."""
    found = state_report(graph)
    if found is None:
        return []
    lines = [
        f"state in place: {counted(found.in_place, 'output')} over the old values, "
        f"{format_bytes(found.in_place_bytes)} that no run takes, {AS_TRAINED}"
    ]
    if found.reasons:
        reasons = Counter(found.reasons.values()).most_common(_REASONS_SHOWN)
        told = "; ".join(reason for reason, _ in reasons)
        lines.append(
            f"in a second buffer: {counted(len(found.reasons), 'output')}, "
            f"{format_bytes(found.second_bytes)}: {told}"
        )
    return lines


def offer_line(timeline: Timeline, bound: Timeline | None) -> list[str]:
    """What binding state would save."""
    if bound is None:
        return []
    saved = timeline.peak_bytes - bound.peak_bytes
    if saved <= 0:
        return []
    return [
        "with its state in place, as memplan.Trainer binds it: peak "
        f"{format_bytes(bound.peak_bytes)}, {format_bytes(saved)} less (--state in-place)"
    ]
