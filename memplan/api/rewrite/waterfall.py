"""From the original to the result: what every step on the way saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memplan.passes.manager import PassStep
from memplan.simulate.floor import structural_floor
from memplan.simulate.timeline import Timeline


@dataclass(frozen=True, slots=True)
class WaterfallStep:
    """A step: its name, the timelines behind and before it, and what it did in a few words."""

    name: str
    timeline: Timeline
    before: Timeline
    note: str

    @property
    def saved_bytes(self) -> int:
        """What the peak fell by, workspace included: what a budget is held against."""
        return self.before.peak_with_workspace_bytes - self.timeline.peak_with_workspace_bytes

    @property
    def floor_bytes(self) -> int:
        """Below that no plan for this step's graph goes, workspace included."""
        timeline = self.timeline
        floor = structural_floor(timeline.graph, timeline)
        return timeline.resident_bytes + floor.with_workspace

    def as_json(self) -> dict[str, object]:
        """All figures, by name."""
        return {
            "name": self.name,
            "nodes": len(self.timeline.graph.nodes),
            "peak_bytes": self.timeline.peak_bytes,
            "peak_with_workspace_bytes": self.timeline.peak_with_workspace_bytes,
            "floor_with_workspace_bytes": self.floor_bytes,
            "saved_bytes": self.before.peak_bytes - self.timeline.peak_bytes,
            "saved_with_workspace_bytes": self.saved_bytes,
            "note": self.note,
        }


def waterfall(
    original: Timeline,
    fused: Timeline | None,
    level: str,
    passes: Sequence[PassStep],
    recomputed: tuple[Timeline, str],
) -> tuple[WaterfallStep, ...]:
    """original → fuse → every pass → recompute; ``level`` is that of the fusions, if any."""
    rows = [("original", original, "")]
    if fused is not None:
        rows.append(("fuse", fused, level))
    rows += [(step.name, step.timeline, step.note) for step in passes]
    rows.append(("recompute", *recomputed))
    before = [original, *(timeline for _, timeline, _ in rows)]
    return tuple(
        WaterfallStep(name, timeline, previous, note)
        for (name, timeline, note), previous in zip(rows, before, strict=False)
    )
