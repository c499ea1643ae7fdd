"""Memory over the step in blocks (▁▂▃), for a terminal that is wide enough and can show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from memplan.ir.graph import Phase
from memplan.ir.phases import Phases
from memplan.simulate.timeline import Bytes, Timeline
from memplan.units import format_bytes

_BLOCKS = " ▁▂▃▄▅▆▇█"
_ROWS = 3
_NARROWEST, _WIDEST = 60, 120
_FEWEST_STEPS = 8


@dataclass(frozen=True, slots=True)
class Curve:
    """Bytes in memory per step; ``backward`` is the step at which the backward part begins,
    None where there is none."""

    label: str
    total: Bytes
    backward: int | None


def curve(label: str, timeline: Timeline, backward: int | None) -> Curve:
    """The curve of a simulated step, kernel workspace included."""
    total = timeline.dynamic + timeline.workspace + timeline.resident_bytes
    return Curve(label, total, backward)


def backward_at(timeline: Timeline, phases: Phases, original: Timeline | None = None) -> int | None:
    """Where the backward part begins: most of forward is before, most of backward behind it.

    ``phases`` are of the timeline's own graph or, where there is an ``original`` that it was made
    of, of that one; nodes are then known by name.
    """
    sign = {Phase.FORWARD: 1, Phase.LOSS: 1, Phase.BACKWARD: -1}
    known = (original or timeline).graph
    signs = {node.name: sign.get(phases.of[node.id], 0) for node in known.nodes}
    if -1 not in signs.values():
        return None
    nodes = timeline.graph.nodes
    steps = [signs.get(nodes[node].name, 0) for node in timeline.order]
    return int(np.cumsum(steps).argmax()) + 1


class Blocks:
    """Curves on one scale, one below the other; nothing where they cannot be shown."""

    def __init__(self, *curves: Curve) -> None:
        self._curves = curves

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = [each for each in self._curves if len(each.total) >= _FEWEST_STEPS]
        utf = options.encoding.lower().startswith("utf")
        terminal = options.is_terminal or console.file.isatty()  # the former is also about colours
        if not (terminal and utf and shown) or options.max_width < _NARROWEST:
            return
        highest = max(int(each.total.max()) for each in shown)
        edge = max(len(format_bytes(highest)), *(len(each.label) for each in shown))
        for each in shown:
            yield Text()
            for text in drawn(each, highest, edge, min(options.max_width, _WIDEST)):
                yield Text(text, no_wrap=True, overflow="crop")


def drawn(curve: Curve, highest: int, edge: int, width: int) -> Sequence[str]:
    """The lines of a curve: ``edge`` columns for labels, ``width`` in all."""
    columns = min(width - edge - 2, len(curve.total))
    parts = np.array_split(curve.total, columns)
    levels = [round(int(part.max()) / max(highest, 1) * _ROWS * 8) for part in parts]
    divider = None if curve.backward is None else curve.backward * columns // len(curve.total)
    peak = format_bytes(int(curve.total.max()))
    lines = []
    for row in range(_ROWS - 1, -1, -1):
        label = (peak, curve.label, "")[_ROWS - 1 - row]
        bar = "".join(_BLOCKS[min(max(level - 8 * row, 0), 8)] for level in levels)
        lines.append(f"{label:>{edge}} ┤{bar}".rstrip())
    if divider is None:
        return lines
    before = "forward" if divider > len("forward") else ""
    return [*lines, f"{'':>{edge}}  {before:<{divider}}│ backward"[:width]]
