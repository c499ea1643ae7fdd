"""A profile as text: how far the estimates are from what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from memplan.planning.costs import OpTime, total
from memplan.report.terminal.base import console

if TYPE_CHECKING:
    from memplan.api.profile import Profile

_OPS_SHOWN = 10


def print_profile(
    result: Profile, output: Path, color: str = "auto", details: bool = False
) -> None:
    """Print what was measured; ``details`` shows every operator."""
    console(color).print(render_profile(result, output, details))


def render_profile(result: Profile, output: Path, details: bool) -> Group:
    """Headline, the runs, and a table by operator."""
    dims = "".join(f", {name}={size}" for name, size in result.dims.items())
    facts = [
        f"{result.path}: tuned session on {result.provider}{dims}"
        + (f" ({result.device['name']})" if result.device["name"] else ""),
        f"median of {result.kept_runs} of {result.runs} runs; a step took "
        f"{_ms(result.step_seconds)} ms under the profiler",
    ]
    if result.other_nodes:
        facts.append(
            f"{_ms(result.other_seconds)} ms of it in {result.other_nodes} nodes that the runtime "
            "added; they are in no costs"
        )
    parts: list[RenderableType] = [Text(result.summary, style="bold"), *map(Text, facts), Text()]
    parts += [Text("By operator, worst estimate first", style="bold"), _table(result, details)]
    parts += [Text(f"- {note}") for note in result.assumptions]
    parts += [Text(f"wrote {output}")]
    return Group(*parts)


def _table(result: Profile, details: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("operator", no_wrap=True)
    for heading in ("nodes", "measured ms", "estimated ms", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows = list(result.by_op)
    shown = rows if details else rows[:_OPS_SHOWN]
    for row in shown:
        table.add_row(*_cells(row.op, row))
    rest = rows[len(shown) :]
    if rest:
        table.add_row(*_cells(f"{len(rest)} more (-v shows them)", total(rest)))
    table.add_section()
    table.add_row(*_cells("total", total(rows)))
    return table


def _cells(name: str, row: OpTime) -> tuple[str, ...]:
    ratio = f"{row.ratio:.2f}" if row.estimated_seconds else "-"
    return (
        name,
        str(row.nodes),
        _ms(row.measured_seconds),
        _ms(row.estimated_seconds),
        ratio,
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.2f}"
