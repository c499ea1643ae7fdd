"""``memplan validate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memplan.errors import EXIT_FINDING
from memplan_cli.command import memplan_command
from memplan_cli.progress import steps_progress
from memplan_cli.shared_options import (
    PATH,
    Report,
    bound,
    dim_option,
    measuring_options,
    provider_option,
    report_options,
    state_option,
    time_limit_option,
)


@memplan_command(
    "validate",
    "memplan validate step.onnx step.memplan.onnx",
    "memplan validate step.onnx head.onnx --wrt 'head*' --inputs trained.npz",
)
@click.argument("original", type=PATH)
@click.argument("rewritten", type=PATH)
@dim_option("Give a symbolic dimension its size.  [default: as recorded in REWRITTEN]")
@provider_option("Where to run; auto: as recorded in REWRITTEN.", auto=True)
@state_option
@measuring_options("Timed runs of each model.")
@click.option(
    "--draws",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Different sets of inputs; --inputs is one of them.",
)
@click.option(
    "--wrt",
    metavar="GLOB",
    multiple=True,
    help="As given to rewrite: expect the outputs that it removed to be missing. Repeatable.",
)
@time_limit_option("Seconds for all runs of one model in one process.", 600.0)
@click.option(
    "--plain/--no-plain",
    default=True,
    show_default=True,
    help="Also run ORIGINAL with default options.",
)
@report_options()
def command(
    original: Path, rewritten: Path, dims: tuple[str, ...], report: Report, **options: Any
) -> int:
    """Prove that REWRITTEN computes what ORIGINAL does, run both and compare them.

    The exit code is 1 if the files are not equivalent by construction, if outputs differ in any
    draw, if a run breaks the recorded budget or takes other than predicted, if outputs are missing,
    or if recomputed nodes did not run as planned.
    """
    from memplan.api.validate.validating import ValidateOptions, validate

    report.guard(original, rewritten, options["inputs"])
    with steps_progress(report) as progress:
        result = validate(
            original, rewritten, ValidateOptions(**options), dims=bound(dims), progress=progress
        )
    if report.form == "json":
        report.emit_json(result.as_json())
    elif report.quiet:
        report.emit(f"{result.verdict}: {result.summary}\n")
    else:
        from memplan.report.terminal.validation_text import render

        details = report.details or report.output is not None
        report.emit_text(render(result, details=details))
    return EXIT_FINDING if result.findings else 0
