"""``memplan validate`` as text: the verdict, and what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from memplan.report.terminal.tables import Table, group, line, notes, section

if TYPE_CHECKING:
    from memplan.api.validate.run import Run, Validation


def render(validation: Validation, *, details: bool = False) -> Group:
    """Verdict, measurements side by side, and what to know about them."""
    proved = not validation.findings
    verdict = f"{'proved' if proved else 'not proved'}: {validation.summary}"
    parts: list[RenderableType] = [line(verdict, "bold green" if proved else "bold red")]
    parts += [line(f"- {finding}", "red") for finding in validation.findings]
    parts += section(_runs_table(validation))
    parts += [line(text) for text in validation.details]
    return group([*parts, *notes(validation.notes, details)])


def _runs_table(validation: Validation) -> Table:
    runs: list[Run] = list(validation.runs)
    table = Table(
        "Measured, each in a process of its own (bytes)",
        ("", "text"),
        *[(run.label, "number") for run in runs],
    )
    rows = [
        ("peak, predicted", [_bytes(run.predicted_peak_bytes) for run in runs]),
        ("peak, measured", [_bytes(run.measured_peak_bytes) for run in runs]),
        ("  of it resident", [_bytes(run.resident_bytes) for run in runs]),
        ("  of it dynamic", [_bytes(run.measured_dynamic_bytes) for run in runs]),
        (
            "dynamic, later runs, predicted",
            [_bytes(run.predicted_later_dynamic_bytes) for run in runs],
        ),
        ("dynamic, later runs, measured", [_bytes(run.second_run_dynamic_bytes) for run in runs]),
        ("arena held", [_bytes(run.arena_bytes) for run in runs]),
        ("RSS growth, first run", [_bytes(run.rss_growth_bytes) for run in runs]),
        ("step time, median", [_seconds(run.seconds_median) for run in runs]),
    ]
    for name, cells in rows:
        table.row(name, *cells)
    return table


def _bytes(nbytes: int | None) -> str:
    return "-" if nbytes is None else f"{nbytes:,}"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.1f} ms"
