"""What a report is made of: said once of a result, and printed by :mod:`.terminal` or :mod:`.html`.

Texts and names in it come from files that others wrote; each printer escapes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from memplan.ir.graph import Phase
from memplan.units import counted, format_bytes, format_delta

if TYPE_CHECKING:
    from memplan.api.analysis import Analysis
    from memplan.ir.counterparts import Counterparts
    from memplan.ir.phases import Phases
    from memplan.simulate.timeline import Bytes, Timeline

Row = Sequence[Any]
Kind = Literal["name", "phrase", "text", "class", "number", "bytes", "delta", "count", "percent"]
_SHOWN: Mapping[str, Callable[[Any], str]] = {
    "bytes": format_bytes,
    "delta": format_delta,
    "count": "{:,}".format,
    "percent": lambda fraction: f"{100 * fraction:.2f}%",
}


@dataclass(frozen=True, slots=True)
class Line:
    """A line that stands out; plain lines are texts. The first one is the headline."""

    text: str
    style: str = "bold"


@dataclass(frozen=True, slots=True)
class Column:
    """How the values of a column are shown.

    Where there is not enough room, a ``name`` is shortened in the middle and a ``phrase`` at its
    end, ``text`` wraps between words, and what is a number stays whole; a ``class`` of tensors is
    text that has a colour on a page. ``show`` spells a value, ``rest`` makes one of those that are
    left out. What is ``wide`` is on pages only.
    """

    heading: str
    kind: Kind = "text"
    show: Callable[[Any], str] | None = None
    rest: Callable[[Iterable[Any]], Any] | None = None
    wide: bool = False

    @property
    def numeric(self) -> bool:
        """Whether values are numbers; a text among them says why there is none."""
        return self.kind not in ("name", "phrase", "text", "class")

    def shown(self, value: object) -> str:
        """A cell."""
        if isinstance(value, str | Spelled | None):
            return str(value or "")
        return (self.show or _SHOWN.get(self.kind, str))(value)

    def summed(self, values: Iterable[Any]) -> object:
        """What stands for the values of many rows, if anything does."""
        if self.rest is None and self.kind not in ("bytes", "delta", "count"):
            return None
        return (self.rest or sum)(values)


@dataclass(frozen=True, slots=True)
class Spelled:
    """A number with a text of its own."""

    text: str
    value: float

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of values under a title; a table without any is left out.

    ``below``: more rows, each group under a rule. A terminal shows the ``most`` rows that are
    first or, by the column ``weight``, largest; ``noun`` is what the rest is counted in. ``tree``:
    names in the first column are paths of modules, with bytes behind them and, in the last column,
    how many tensors these are.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    below: Sequence[Sequence[Row]] = ()
    most: int | None = None
    weight: int | None = None
    noun: str = ""
    wide: bool = False
    tree: bool = False

    def cut(self, most: int | None) -> tuple[Sequence[Row], list[Row]]:
        """At most so many rows, and one that sums up the others, if there are any."""
        if most is None or len(self.rows) <= most:
            return self.rows, []
        ranked = list(range(len(self.rows)))
        if self.weight is not None:
            ranked.sort(key=lambda k: -abs(self.rows[k][self.weight or 0]))
        kept = set(ranked[:most])
        rest = [row for k, row in enumerate(self.rows) if k not in kept]
        more = f"{len(rest)} more"
        summed = [c.summed(row[k] for row in rest) for k, c in enumerate(self.columns)]
        summed[0] = counted(len(rest), f"more {self.noun}") if self.noun else more
        return [row for k, row in enumerate(self.rows) if k in kept], [summed]


@dataclass(frozen=True, slots=True)
class Life:
    """When a buffer is in memory: steps, out of all; a page draws it, with the peak."""

    birth: int
    death: int
    steps: int
    peak: int
    color: str

    def __str__(self) -> str:
        return f"{self.birth}-{self.death}"


@dataclass(frozen=True, slots=True)
class Curve:
    """Bytes in memory per step; ``backward`` is the step at which the backward part begins,
    None where there is none."""

    label: str
    total: Bytes
    backward: int | None


def curve(
    label: str, timeline: Timeline, phases: Phases, original: Timeline | None = None
) -> Curve:
    """The curve of a simulated step, kernel workspace included.

    ``phases`` are of the timeline's own graph or, where there is an ``original`` that it was made
    of, of that one; nodes are then known by name. Most of forward is before ``backward``, most of
    backward behind it.
    """
    total = timeline.dynamic + timeline.workspace + timeline.resident_bytes
    sign = {Phase.FORWARD: 1, Phase.LOSS: 1, Phase.BACKWARD: -1}
    known = (original or timeline).graph
    signs = {node.name: sign.get(phases.of[node.id], 0) for node in known.nodes}
    if -1 not in signs.values():
        return Curve(label, total, None)
    nodes = timeline.graph.nodes
    steps = [signs.get(nodes[node].name, 0) for node in timeline.order]
    return Curve(label, total, int(np.cumsum(steps).argmax()) + 1)


@dataclass(frozen=True, slots=True)
class Timelines:
    """Memory over a step, or before and after on one scale: ``curves`` for a terminal, analyses
    for a page, by title; with ``counterparts`` the first is also drawn over the second."""

    curves: Sequence[Curve]
    analyses: Mapping[str, Analysis]
    counterparts: Counterparts | None = None


@dataclass(frozen=True, slots=True)
class TensorSearch:
    """A search in all tensors, on a page."""

    analysis: Analysis


@dataclass(frozen=True, slots=True)
class Notes:
    """Assumptions, each told once."""

    texts: Iterable[str]


Part = str | Line | Table | Timelines | TensorSearch | Notes


@dataclass(frozen=True, slots=True)
class Report:
    """What is told of a result, from top to bottom. ``title`` and ``about`` (its source) are for a
    page."""

    parts: Sequence[Part]
    title: str = ""
    about: str = ""
