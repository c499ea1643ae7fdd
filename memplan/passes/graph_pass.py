"""What a pass is, and what it hands on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline, simulate

Edit = TypeVar("Edit")


@dataclass(frozen=True, slots=True)
class Applied:
    """What a pass makes of a model: the same object where it found nothing to do.

    ``note`` says what was done, in a few words.
    """

    model: OpenModel
    note: str = ""


class Pass(Protocol):
    """A pass: options as fields. All outputs that stay keep their bits."""

    name: ClassVar[str]
    summary: ClassVar[str]

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


def peak_fell(after: Timeline, before: Timeline) -> bool:
    """Whether the peak fell, in the same sense."""
    return _peaks(after) < _peaks(before)


def largest_part(
    timeline: Timeline,
    edits: Sequence[Edit],
    after: Callable[[list[Edit]], OpenModel],
    accepts: Callable[[Timeline, Timeline], bool],
) -> tuple[OpenModel, Timeline, int] | None:
    """The model after as many edits as are accepted, simulated, and how many; None if none is.

    Halves are tried where the whole is not accepted, so that one bad edit does not spoil the
    others.

    Args:
        timeline: before any edit.
        edits: what may be done; any part of it.
        after: the model with some of them done.
        accepts: whether a timeline is good enough, given the one before.
    """
    accepted: list[Edit] = []
    best: tuple[OpenModel, Timeline] | None = None
    waiting = [list(edits)] if edits else []
    while waiting:
        part = waiting.pop()
        model = after([*accepted, *part])
        found = simulate(model.graph, timeline.session)
        if accepts(found, best[1] if best is not None else timeline):
            accepted += part
            best = (model, found)
        elif len(part) > 1:
            middle = len(part) // 2
            waiting += [part[middle:], part[:middle]]
    return None if best is None else (*best, len(accepted))


def _peaks(timeline: Timeline) -> tuple[int, int]:
    return timeline.peak_with_workspace_bytes, timeline.peak_bytes
