"""``memplan validate`` as text: the verdict, and what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from memplan.report.terminal.tables import Table, group, line, notes, section

if TYPE_CHECKING:
    from memplan.api.validate.validation import Run, Validation


def render(validation: Validation, *, details: bool = False) -> Group:
    """Verdict, measurements side by side, and what to know about them."""
    clean = validation.proved and validation.rise_bytes <= 0
    colour = "green" if clean else "red" if validation.findings else "yellow"
    verdict = f"{validation.verdict}: {validation.summary}"
    parts: list[RenderableType] = [line(verdict, f"bold {colour}")]
    parts += [line(f"- {finding}", "red") for finding in validation.findings]
    parts += section(runs_table(validation.runs))
    parts += [line(text) for text in validation.details]
    return group([*parts, *notes(validation.notes, details)])


def runs_table(runs: Sequence[Run]) -> Table:
    """What is counted from the files, what was measured, and the peaks that both give."""
    table = Table(
        "Each model in a process of its own (bytes)",
        ("", "text"),
        *[(run.label.replace(", ", ",\n"), "number") for run in runs],
    )
    draws = max(len(run.further_dynamic_bytes) for run in runs)
    parts: list[list[tuple[str, list[str]]]] = [
        [
            ("resident, from the file", [_bytes(run.resident_bytes) for run in runs]),
            ("workspace, predicted only", [_bytes(run.workspace_bytes) for run in runs]),
        ],
        [
            ("dynamic, predicted", [_bytes(_dynamic(run)) for run in runs]),
            ("dynamic, measured", [_bytes(run.measured_dynamic_bytes) for run in runs]),
            (
                "dynamic, later runs, predicted",
                [_bytes(run.predicted_later_dynamic_bytes) for run in runs],
            ),
            (
                "dynamic, later runs, measured",
                [_bytes(run.second_run_dynamic_bytes) for run in runs],
            ),
            *(
                (f"dynamic, draw {k + 2}, measured", [_bytes(_further(run, k)) for run in runs])
                for k in range(draws)
            ),
            ("arena held", [_bytes(run.arena_bytes) for run in runs]),
            ("RSS growth, first run", [_bytes(run.rss_growth_bytes) for run in runs]),
            ("step time, median", [_seconds(run.seconds_median) for run in runs]),
        ],
        [
            ("peak, predicted", [_bytes(run.predicted_peak_bytes) for run in runs]),
            ("peak, resident + measured", [_bytes(run.measured_peak_bytes) for run in runs]),
        ],
    ]
    for k, rows in enumerate(parts):
        if k:
            table.rule()
        for name, cells in rows:
            table.row(name, *cells)
    return table


def _dynamic(run: Run) -> int | None:
    peak = run.predicted_peak_bytes
    return None if peak is None else peak - run.resident_bytes


def _further(run: Run, draw: int) -> int | None:
    found = run.further_dynamic_bytes
    return found[draw] if draw < len(found) else None


def _bytes(nbytes: int | None) -> str:
    return "-" if nbytes is None else f"{nbytes:,}"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.1f} ms"
