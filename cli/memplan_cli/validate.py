"""``memplan validate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memplan.errors import EXIT_FINDING
from memplan_cli.command import memplan_command
from memplan_cli.options import (
    PATH,
    Report,
    bound,
    dim_option,
    measuring_options,
    provider_option,
    report_options,
)


@memplan_command(
    "validate",
    "memplan validate step.onnx step.memplan.onnx",
    "memplan validate step.onnx step.memplan.onnx --provider cuda --runs 20",
)
@click.argument("original", type=PATH)
@click.argument("rewritten", type=PATH)
@dim_option("Give a symbolic dimension its size.  [default: as recorded in REWRITTEN]")
@provider_option("Where to run; auto: as recorded in REWRITTEN.", auto=True)
@measuring_options("Timed runs of each model.")
@click.option(
    "--plain/--no-plain",
    default=True,
    show_default=True,
    help="Also run ORIGINAL with every option on its default.",
)
@report_options()
def command(
    original: Path, rewritten: Path, dims: tuple[str, ...], report: Report, **options: Any
) -> int:
    """Run ORIGINAL and REWRITTEN, each in a process of its own, and compare them.

    The exit code is 1 if the outputs differ, if the measured peak breaks the recorded budget, or
    if recomputed nodes did not run as planned.
    """
    from memplan.api.validate.run import ValidateOptions, validate

    report.guard(original, rewritten, options["inputs"])
    result = validate(original, rewritten, ValidateOptions(**options), dims=bound(dims))
    if report.form == "json":
        report.emit_json(result.as_json())
    elif report.quiet:
        report.emit(result.summary + "\n")
    else:
        from memplan.report.terminal.validate import render

        details = report.details or report.output is not None
        report.emit_text(render(result, details=details))
    return EXIT_FINDING if result.findings else 0
