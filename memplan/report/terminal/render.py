"""A report as text: parts one below the other, with an empty line above every table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType

from memplan.report.parts import Line, Notes, Part, Table, Timelines
from memplan.report.terminal import tables
from memplan.report.terminal.blocks import Blocks


def render(parts: Sequence[Part], *, details: bool = False) -> Group:
    """The parts of a report; ``details`` leaves no row and no note out."""
    return tables.group(shown for part in parts for shown in _shown(part, details))


def _shown(part: Part, details: bool) -> list[RenderableType]:
    match part:
        case str():
            return [tables.line(part)]
        case Line():
            return [tables.line(part.text, part.style)]
        case Table(wide=False) if part.rows or part.below:
            return tables.section(_table(part, details))
        case Timelines():
            return [Blocks(*part.curves)]
        case Notes():
            return tables.notes(part.texts, details)
    return []


def _table(table: Table, details: bool) -> tables.Table:
    columns = [(k, column) for k, column in enumerate(table.columns) if not column.wide]
    kinds = ("number" if c.numeric else "text" if c.kind == "class" else c.kind for _, c in columns)
    heads = zip((column.heading for _, column in columns), kinds, strict=True)
    shown = tables.Table(table.title, *heads)
    rows, rest = table.cut(None if details else table.most)
    for k, group in enumerate(([*rows, *rest], *table.below)):
        if k:
            shown.rule()
        for row in group:
            shown.row(*(column.shown(row[k]) for k, column in columns))
    return shown
