"""Memory over the step in blocks (▁▂▃), for a terminal that is wide enough and can show them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from memplan.report.parts import Curve
from memplan.units import format_bytes

_BLOCKS = " ▁▂▃▄▅▆▇█"
_ROWS = 3
_NARROWEST, _WIDEST = 60, 120
_FEWEST_STEPS = 8


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
