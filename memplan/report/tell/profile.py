"""What ``profile`` says: how far the estimates are from what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memplan.planning.costs import OpTime, total
from memplan.report.parts import Column, Line, Report, Table
from memplan.units import counted

if TYPE_CHECKING:
    from memplan.api.profiling import Profile

_OPS_SHOWN = 10


def tell_profile(result: Profile, output: Path, details: bool = False) -> Report:
    """Headline, the runs, and a table by operator; ``details`` shows every operator."""
    dims = "".join(f", {name}={size}" for name, size in result.dims.items())
    facts = [
        f"{result.path}: tuned session on {result.provider}{dims}"
        + (f" ({result.device['name']})" if result.device["name"] else ""),
        f"median of {result.kept_runs} of {counted(result.runs, 'run')}; a step took "
        f"{_ms(result.step_seconds)} ms under the profiler; other work on the machine counts",
    ]
    if result.other_nodes:
        nodes = counted(result.other_nodes, "node")
        facts.append(
            f"{_ms(result.other_seconds)} ms of it in {nodes} that the runtime added, which "
            f"{'is' if result.other_nodes == 1 else 'are'} not in the costs"
        )
    return Report(
        [
            Line(result.summary),
            *facts,
            _table(result, details),
            *(f"- {note}" for note in result.assumptions),
            f"wrote {output}",
        ]
    )


def _table(result: Profile, details: bool) -> Table:
    rows = list(result.by_op)
    shown = rows if details else rows[:_OPS_SHOWN]
    rest = rows[len(shown) :]
    cells = [_cells(row.op, row) for row in shown]
    cells += [_cells(f"{len(rest)} more (-v shows them)", total(rest))] if rest else []
    headings = ("nodes", "measured ms", "estimated ms", "ratio")
    return Table(
        "By operator, worst estimate first",
        [Column("operator", "name"), *(Column(heading, "number") for heading in headings)],
        cells,
        [[_cells("total", total(rows))]],
    )


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
