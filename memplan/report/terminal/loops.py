"""Pairs of loops as text: what they store per step, and what a plan made of that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.markup import escape
from rich.text import Text

from memplan.report.terminal.base import _table as table_of
from memplan.report.terminal.base import _titled as titled
from memplan.units import format_bytes

if TYPE_CHECKING:
    from memplan.api.analyze import Analysis
    from memplan.api.rewrite.run import Rewrite
    from memplan.loops.pairs import RecurrentPair

_SHOWN = 8


def pair_tables(analysis: Analysis) -> list[Group]:
    """Per pair, what the backward loop reads of what the forward loop stacked, by name."""
    found = []
    for pair in analysis.recurrent:
        title = (
            f"Stored by {pair.forward.node.op_type} {escape(pair.forward.node.name)} for "
            f"{escape(pair.backward.node.name)}: {format_bytes(pair.step_bytes)} a step × "
            f"{pair.steps} = {format_bytes(pair.steps * pair.step_bytes)}"
        )
        table = table_of(
            [
                ("stacked", "fold"),
                ("in the body", "fold"),
                ("shape", "left"),
                ("per step", "right"),
                ("in total", "right"),
            ]
        )
        for item in sorted(pair.stored, key=lambda row: -(row.step_bytes() or 0)):
            table.add_row(
                escape(item.name),
                escape(item.tensor),
                "×".join(map(str, item.shape)),
                format_bytes(item.step_bytes() or 0),
                format_bytes(pair.steps * (item.step_bytes() or 0)),
            )
        rest = _read_behind(analysis, pair)
        found.append(Group(titled(title, table), Text(rest)) if rest else titled(title, table))
    return found


def _read_behind(analysis: Analysis, pair: RecurrentPair) -> str:
    """What the backward part reads of the forward loop beside its backward loop, and the sum with
    that; empty if there is nothing."""
    names = (pair.forward.node.name, pair.backward.node.name)
    known = {item.name for item in pair.stored}
    for layer in analysis.scans:
        more = [item for item in layer.stored if item.name not in known]
        nbytes = pair.step_bytes + sum(item.step_bytes(analysis.dims) or 0 for item in more)
        if (layer.forward, layer.backward) == names and more:
            listed, total = ", ".join(item.name for item in more), format_bytes(pair.steps * nbytes)
            each = f"{format_bytes(nbytes)} a step × {pair.steps}"
            return f"with {listed}, read behind the loop: {each} = {total}"
    return ""


def change_table(result: Rewrite) -> Group | None:
    """What the pairs stored, store now, and make again; None where none was changed."""
    changed = [pair for pair in result.pairs if pair.recomputed]
    if not changed:
        return None
    table = table_of(
        [
            ("backward loop", "fold"),
            ("steps", "right"),
            ("stored a step", "right"),
            ("now", "right"),
            ("made again at every step", "fold"),
        ]
    )
    for pair in changed:
        names = ", ".join(pair.recomputed[:_SHOWN])
        more = len(pair.recomputed) - _SHOWN
        table.add_row(
            escape(pair.backward),
            str(pair.steps),
            format_bytes(pair.before_bytes),
            format_bytes(pair.after_bytes),
            escape(names) + (f" and {more} more" if more > 0 else ""),
        )
    return titled("Loops that store less", table)
