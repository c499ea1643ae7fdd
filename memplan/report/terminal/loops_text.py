"""Pairs of loops as text: what they store per step, and what a plan made of that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import RenderableType

from memplan.report.terminal.tables import Table, group, line, listed
from memplan.units import format_bytes

if TYPE_CHECKING:
    from memplan.api.analysis import Analysis
    from memplan.api.rewrite.rewriting import Rewrite
    from memplan.passes.loops.loop_pairs import RecurrentPair

_SHOWN = 8


def stored_tables(analysis: Analysis) -> list[RenderableType]:
    """Per pair, what the backward loop reads of what the forward loop stacked, by name."""
    found: list[RenderableType] = []
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
        for item in sorted(pair.stored, key=lambda row: -(row.step_bytes() or 0)):
            table.row(
                item.name,
                item.tensor,
                "×".join(map(str, item.shape)),
                format_bytes(item.step_bytes() or 0),
                format_bytes(pair.steps * (item.step_bytes() or 0)),
            )
        rest = _read_behind(analysis, pair)
        found.append(group([table, line(rest)]) if rest else table)
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
            what, total = ", ".join(item.name for item in more), format_bytes(pair.steps * nbytes)
            each = f"{format_bytes(nbytes)} a step × {pair.steps}"
            return f"with {what}, read behind the loop: {each} = {total}"
    return ""


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
