"""What a pass is, and what it hands on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from memplan.planning.plan_file import ChunkDecision
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Applied:
    """What a pass makes of a model: the same object where it found nothing to do.

    ``note`` says what was done, in a few words; ``chunks`` what went into chunks. ``judged``: the
    pass has held the peak against the one before itself.
    """

    model: OpenModel
    note: str = ""
    chunks: tuple[ChunkDecision, ...] = ()
    judged: bool = False


class Pass(Protocol):
    """A pass: options as fields. All outputs that stay keep their bits."""

    name: ClassVar[str]

    def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
        """The model after the pass. ``timeline`` is the simulation of ``model``.

        Raises:
            UsageError: an option names what is not there.
        """
        ...


def peak_did_not_rise(after: Timeline, before: Timeline) -> bool:
    """Whether the peak did not rise: that with workspace, which a budget is held against; where
    that is the same, the one without."""
    return _peaks(after) <= _peaks(before)


def _peaks(timeline: Timeline) -> tuple[int, int]:
    return timeline.peak_with_workspace_bytes, timeline.peak_bytes
