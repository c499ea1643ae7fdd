"""``memplan validate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memplan.errors import EXIT_FINDING
from memplan.options import ValidateOptions
from memplan_cli.command import memplan_command
from memplan_cli.options import PATH, Report, bound, dim_option, options, report_options
from memplan_cli.progress import waiting


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
@options(ValidateOptions, "provider", "state")
@options(ValidateOptions, "runs", type=click.IntRange(min=1))
@options(ValidateOptions, "inputs", "seed", "threads", "draws", "wrt", "time_limit", "plain")
@report_options()
def command(
    original: Path, rewritten: Path, dims: tuple[str, ...], report: Report, **asked: Any
) -> int:
    """Prove that REWRITTEN computes what ORIGINAL does, run both and compare them.

    The exit code is 1 if the proof fails, if outputs are missing or differ on any set of inputs, if
    a run exceeds the recorded budget or its peak is not the predicted one, or if recomputed nodes
    did not run as planned.
    """
    from memplan.api.validate.validating import validate
    from memplan.report.tell.validate import tell_validation

    report.guard(original, rewritten, asked["inputs"])
    with waiting(report, "reading both models") as show:
        result = validate(
            original,
            rewritten,
            ValidateOptions(**asked),
            dims=bound(dims),
            progress=lambda place, total, what: show(f"{what} ({place} of {total})"),
        )
    verdict = f"{result.verdict}: {result.summary}"
    report.tell(result, verdict, lambda _: tell_validation(result))
    return EXIT_FINDING if result.findings else 0
