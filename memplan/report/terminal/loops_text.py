"""Pairs of loops as text: what they store per step, and what a plan made of that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.report.terminal.tables import Table, listed
from memplan.units import format_bytes

if TYPE_CHECKING:
    from memplan.api.analysis import Analysis
    from memplan.api.rewrite.rewriting import Rewrite

_SHOWN = 8


def stored_tables(analysis: Analysis) -> list[Table]:
    """Per pair, what the backward loop reads of what the forward loop stacked, by name."""
    found = []
    for pair in analysis.recurrent:
        table = Table(
            f"Stored by {pair.forward.node.op_type} {pair.forward.node.name} for "
            f"{pair.backward.node.name}: {format_bytes(pair.step_bytes)} a step × "
            f"{pair.steps} = {format_bytes(pair.steps * pair.step_bytes)}",
            ("stacked", "name"),
            ("in the body", "name"),
            ("shape", "number"),
            ("per step", "number"),
            ("in total", "number"),
        )
        for item in sorted(pair.stored, key=lambda row: -row.step_bytes):
            table.row(
                item.name,
                item.tensor,
                "×".join(map(str, item.type.shape or ())),
                format_bytes(item.step_bytes),
                format_bytes(pair.steps * item.step_bytes),
            )
        found.append(table)
    return found


def changed_table(result: Rewrite) -> Table | None:
    """What the pairs stored, what they store now and recompute; None where none was changed."""
    changed = [pair for pair in result.pairs if pair.recomputed]
    if not changed:
        return None
    table = Table(
        "Loops that store less",
        ("backward loop", "name"),
        ("steps", "number"),
        ("stored a step", "number"),
        ("now", "number"),
        ("recomputed at every step", "text"),
    )
    for pair in changed:
        table.row(
            pair.backward,
            str(pair.steps),
            format_bytes(pair.before_bytes),
            format_bytes(pair.after_bytes),
            listed(pair.recomputed, most=_SHOWN),
        )
    return table
