"""What passes did, and could do, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.api.validate.same_interface import some_names
from memplan.passes.manager import removed
from memplan.report.terminal.tables import Table, listed
from memplan.simulate.narrowing import narrowings
from memplan.units import counted, format_bytes

if TYPE_CHECKING:
    from memplan.api.analysis import Analysis
    from memplan.api.rewrite.rewriting import Rewrite

_MODULES_SHOWN = 8
_STASHES_SHOWN = 3


def narrowing_table(analysis: Analysis) -> Table | None:
    """What fewer wanted gradients would free; None where nothing would."""
    found = [
        item
        for item in narrowings(analysis.timeline, analysis.phases)
        if item.freed_with_earlier_bytes
    ]
    if not found:
        return None
    table = Table(
        "A narrower --wrt would free, at this step",
        ("frozen module", "name"),
        ("frees", "number"),
        ("with all before it", "number"),
        ("its stashes", "phrase"),
    )
    for item in found[:_MODULES_SHOWN]:
        table.row(
            item.module,
            format_bytes(item.freed_bytes),
            format_bytes(item.freed_with_earlier_bytes),
            listed([name for name, _ in item.stashes], most=_STASHES_SHOWN),
        )
    if len(found) > _MODULES_SHOWN:
        table.row(
            f"{len(found) - _MODULES_SHOWN} more",
            format_bytes(sum(item.freed_bytes for item in found[_MODULES_SHOWN:])),
            format_bytes(found[-1].freed_with_earlier_bytes),
        )
    return table


def removed_lines(result: Rewrite, details: bool) -> list[str]:
    """What ``--wrt`` took out of the graph's interface."""
    lines = []
    for kind, names in removed(result.passes).items():
        if names:
            what = counted(len(names), kind.removeprefix("removed_").removesuffix("s"))
            listing = ", ".join(names) if details else some_names(names)
            lines.append(f"removed by --wrt, {what}: {listing}")
    return lines
