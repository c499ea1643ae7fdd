"""What ``validate`` says: the verdict, and what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from memplan.report.parts import Column, Line, Notes, Report, Table

if TYPE_CHECKING:
    from memplan.api.validate.validation import Run, Validation


def tell_validation(validation: Validation) -> Report:
    """Verdict, measurements side by side, and what to know about them."""
    clean = validation.proved and validation.rise_bytes <= 0
    colour = "green" if clean else "red" if validation.findings else "yellow"
    return Report(
        [
            Line(f"{validation.verdict}: {validation.summary}", f"bold {colour}"),
            *(Line(f"- {finding}", "red") for finding in validation.findings),
            runs_table(validation.runs),
            *validation.details,
            Notes(validation.notes),
        ]
    )


def runs_table(runs: Sequence[Run]) -> Table:
    """What is counted from the files, what was measured, and the peaks that both give."""
    draws = max(len(run.further_dynamic_bytes) for run in runs)
    exact = [Column(run.label.replace(", ", ",\n"), "number", "{:,}".format) for run in runs]
    return Table(
        "Each model in a process of its own (bytes)",
        [Column(""), *exact],
        [
            _row("resident, from the file", (run.resident_bytes for run in runs)),
            _row("workspace, predicted only", (run.workspace_bytes for run in runs)),
        ],
        [
            [
                _row("dynamic, predicted", map(_dynamic, runs)),
                _row("dynamic, measured", (_seen(run, run.measured_dynamic_bytes) for run in runs)),
                _row(
                    "dynamic, later runs, predicted",
                    (run.predicted_later_dynamic_bytes for run in runs),
                ),
                _row(
                    "dynamic, later runs, measured",
                    (_seen(run, run.second_run_dynamic_bytes) for run in runs),
                ),
                *(
                    _row(f"dynamic, draw {k + 2}, measured", (_further(run, k) for run in runs))
                    for k in range(draws)
                ),
                _row("arena held", (_seen(run, run.arena_bytes) for run in runs)),
                _row("RSS growth, first run", (run.rss_growth_bytes for run in runs)),
                _row("step time, median", (_seconds(run.seconds_median) for run in runs)),
            ],
            [
                _row("peak, predicted", (run.predicted_peak_bytes for run in runs)),
                _row(
                    "peak, resident + measured",
                    (_seen(run, run.measured_peak_bytes) for run in runs),
                ),
            ],
        ],
    )


def _seen(run: Run, nbytes: int) -> int | None:
    return nbytes if run.counted else None


def _row(name: str, values: Iterable[int | str | None]) -> list[int | str]:
    return [name, *("-" if value is None else value for value in values)]


def _dynamic(run: Run) -> int | None:
    peak = run.predicted_peak_bytes
    return None if peak is None else peak - run.resident_bytes


def _further(run: Run, draw: int) -> int | None:
    found = run.further_dynamic_bytes
    return found[draw] if draw < len(found) and run.counted else None


def _seconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{1000 * seconds:.1f} ms"
