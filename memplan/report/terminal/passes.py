"""What passes did, and could do, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.markup import escape

from memplan.api.validate.interface import some_names
from memplan.passes.manager import removed
from memplan.report.terminal.base import _table as table_of
from memplan.report.terminal.base import _titled as titled
from memplan.simulate.narrowing import narrowings
from memplan.units import format_bytes

if TYPE_CHECKING:
    from memplan.api.analyze import Analysis
    from memplan.api.rewrite.run import Rewrite

_MODULES_SHOWN = 8
_STASHES_SHOWN = 3


def narrowing_table(analysis: Analysis) -> Group | None:
    """What fewer wanted gradients would free; None where nothing would."""
    found = [
        item
        for item in narrowings(analysis.timeline, analysis.phases)
        if item.freed_with_earlier_bytes
    ]
    if not found:
        return None
    table = table_of(
        [
            ("frozen module", "left"),
            ("frees", "right"),
            ("with all before it", "right"),
            ("its stashes", "fold"),
        ]
    )
    for item in found[:_MODULES_SHOWN]:
        names = ", ".join(name for name, _ in item.stashes[:_STASHES_SHOWN])
        more = len(item.stashes) - _STASHES_SHOWN
        table.add_row(
            escape(item.module),
            format_bytes(item.freed_bytes),
            format_bytes(item.freed_with_earlier_bytes),
            escape(names) + (f" and {more} more" if more > 0 else ""),
        )
    if len(found) > _MODULES_SHOWN:
        last = found[-1]
        table.add_row(
            f"{len(found) - _MODULES_SHOWN} more",
            format_bytes(sum(item.freed_bytes for item in found[_MODULES_SHOWN:])),
            format_bytes(last.freed_with_earlier_bytes),
        )
    return titled("A narrower --wrt would free, at this step", table)


def removed_lines(result: Rewrite, details: bool) -> list[str]:
    """What ``--wrt`` took out of the graph's interface."""
    return [
        f"gone with --wrt, {len(names)} {kind.removeprefix('removed_')}: "
        + (", ".join(names) if details else some_names(names))
        for kind, names in removed(result.passes).items()
        if names
    ]
