"""``memplan validate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memplan.errors import EXIT_FINDING
from memplan_cli.command import memplan_command
from memplan_cli.progress import waiting
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
@dim_option(
    "Set the size of a symbolic dimension. Repeatable.  [default: as recorded in REWRITTEN]"
)
@provider_option("Where to run; auto is as recorded in REWRITTEN.", auto=True)
@state_option
@measuring_options("Timed runs of each model.")
@click.option(
    "--draws",
    type=click.IntRange(min=1),
    metavar="N",
    default=2,
    show_default=True,
    help="Compare the outputs on this many sets of inputs; --inputs is the first.",
)
@click.option(
    "--wrt",
    metavar="GLOB",
    multiple=True,
    help="Expect the outputs that 'rewrite --wrt GLOB' removed to be missing. Repeatable.",
)
@time_limit_option("Seconds allowed for each process, which runs one model.", 600.0)
@click.option(
    "--plain/--no-plain",
    default=True,
    show_default=True,
    help="Also run ORIGINAL in a session with default options, for comparison.",
)
@report_options()
def command(
    original: Path, rewritten: Path, dims: tuple[str, ...], report: Report, **options: Any
) -> int:
    """Prove that REWRITTEN computes what ORIGINAL does, run both and compare them.

    The exit code is 1 if the proof fails, if outputs are missing or differ on any set of inputs, if
    a run exceeds the recorded budget or its peak is not the predicted one, or if recomputed nodes
    did not run as planned.
    """
    from memplan.api.validate.validating import ValidateOptions, validate

    report.guard(original, rewritten, options["inputs"])
    with waiting(report, "reading both models") as show:
        result = validate(
            original,
            rewritten,
            ValidateOptions(**options),
            dims=bound(dims),
            progress=lambda place, total, what: show(f"{what} ({place} of {total})"),
        )
    if report.form == "json":
        report.emit_json(result.as_json())
    elif report.quiet:
        report.emit(f"{result.verdict}: {result.summary}\n")
    else:
        from memplan.report.tell.validate import tell_validation

        report.emit_text(tell_validation(result))
    return EXIT_FINDING if result.findings else 0
