"""The building blocks of every text report: lines, tables and notes.

All text becomes a renderable here, and nowhere else: names from files are escaped, and nothing is
read as markup.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from memplan.units import printable

_NARROWEST = 9
_NOTES_SHOWN = 4


def line(text: str, style: str = "") -> Text:
    """``text`` on a line of its own, wrapped between words where it is too long."""
    return Text(printable(text), style=style)


def group(parts: Iterable[RenderableType]) -> Group:
    """Parts of a report, one below the other."""
    return Group(*parts)


def section(part: RenderableType | None) -> list[RenderableType]:
    """A part with an empty line above it; nothing for None."""
    return [] if part is None else [Text(), part]


class Table:
    """A table under a title that does not wrap to the table's width.

    ``columns`` are pairs of heading and kind. Where there is not enough room, a ``name`` is
    shortened in the middle and a ``phrase`` at its end, ``text`` wraps between words, and a
    ``number``, which is aligned to the right, stays whole. Where that is not enough for all to be
    read, phrases are left out, the last column first.
    """

    def __init__(self, title: str, *columns: tuple[str, str]) -> None:
        self._title = title
        self._kinds = [kind for _, kind in columns]
        self._table = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for heading, kind in columns:
            number = kind == "number"
            self._table.add_column(heading, justify="right" if number else "left", no_wrap=number)

    def row(self, *cells: str) -> None:
        """One more row; cells may hold names from files."""
        self._table.add_row(
            *(
                OneLine(printable(cell), cut_end=kind == "phrase")
                if kind in ("name", "phrase")
                else line(cell)
                for cell, kind in zip(cells, self._kinds, strict=False)
            )
        )

    def rule(self) -> None:
        """A line below the rows so far."""
        self._table.add_section()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield line(self._title, "bold")
        table, phrases = self._table, [k for k, kind in enumerate(self._kinds) if kind == "phrase"]
        while phrases and table.__rich_measure__(console, options).minimum > options.max_width:
            del table.columns[phrases[-1]], self._kinds[phrases.pop()]
        yield table


@dataclass(frozen=True, slots=True)
class OneLine:
    """A cell that never wraps: ``blocks.0.attn.dropout`` becomes ``blocks.0…dropout``."""

    text: str
    cut_end: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = self.text if self.cut_end else shortened(self.text, options.max_width)
        yield Text(shown, no_wrap=True, overflow="ellipsis")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = cell_len(self.text)
        return Measurement(min(width, _NARROWEST), width)


def shortened(text: str, width: int) -> str:
    """``text`` in at most ``width`` terminal columns, with ``…`` in the middle if it is longer."""
    if cell_len(text) <= width:
        return text
    tail = max(width - 1, 0) // 2
    return f"{_fitting(text, width - 1 - tail)}…{_fitting(text[::-1], tail)[::-1]}"


def _fitting(text: str, width: int) -> str:
    """The longest start of ``text`` that takes at most ``width`` columns."""
    used = 0
    for index, character in enumerate(text):
        used += cell_len(character)
        if used > width:
            return text[:index]
    return text


def notes(found: Iterable[str], details: bool) -> list[RenderableType]:
    """Assumptions under a heading, each once; without ``details`` only the first few."""
    distinct = list(dict.fromkeys(found))
    if not distinct:
        return []
    shown = distinct if details else distinct[:_NOTES_SHOWN]
    lines: list[RenderableType] = [Text(), line("Assumptions", "bold")]
    lines += [line(f"- {note}") for note in shown]
    if len(distinct) > len(shown):
        lines.append(line(f"- {len(distinct) - len(shown)} more (-v shows them)"))
    return lines
