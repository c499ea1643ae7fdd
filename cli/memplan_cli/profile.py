"""``memplan profile``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memplan.units import counted
from memplan_cli.command import memplan_command
from memplan_cli.progress import waiting
from memplan_cli.shared_options import (
    PATH,
    Report,
    bound,
    dim_option,
    emit,
    guard_output,
    measuring_options,
    one_on_stdout,
    provider_option,
    report_options,
    time_limit_option,
)


@memplan_command(
    "profile",
    "memplan profile step.onnx -o costs.json",
    "memplan rewrite step.onnx --budget 60% --costs costs.json",
)
@click.argument("model", type=PATH)
@click.option(
    "-o",
    "--output",
    required=True,
    type=PATH,
    help="Write the seconds (JSON) to this file; - is stdout.",
)
@dim_option()
@provider_option("The execution provider to measure on.")
@measuring_options("Measured runs, after two warm-up runs.")
@time_limit_option("Seconds allowed for all runs together.", 600.0)
@report_options(output=None, format_help="Format of the report on stdout.")
def command(
    model: Path, output: Path, dims: tuple[str, ...], report: Report, **options: Any
) -> int:
    """Measure how long each node of MODEL takes, for 'memplan rewrite --costs'.

    MODEL runs in a tuned session in a separate process, so its peak must fit in memory. The report
    compares estimated with measured seconds, by operator.
    """
    from memplan.api.profiling import ProfileOptions, profile
    from memplan.planning.costs import costs_text

    to_stdout = one_on_stdout(output, report.form, "the costs and the report")
    guard_output(output, report.force, model, options["inputs"])
    with waiting(
        report, f"profiling {model.name}: {counted(options['runs'], 'run')} after two to warm up"
    ):
        result = profile(model, ProfileOptions(**options), dims=bound(dims))
    emit(costs_text(result.costs()), output, report.force)
    if report.form == "json":
        report.emit_json({**result.as_json(), "output": str(output)})
    elif not to_stdout and report.quiet:
        click.echo(str(output))
    elif not to_stdout:
        from memplan.report.tell.profile import tell_profile

        report.emit_text(tell_profile(result, output, report.in_full))
    return 0
