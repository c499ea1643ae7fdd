"""``memplan profile``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from memplan.options import ProfileOptions
from memplan.units import counted
from memplan_cli.command import memplan_command
from memplan_cli.options import (
    PATH,
    Report,
    bound,
    dim_option,
    emit,
    guard_output,
    one_on_stdout,
    options,
    output_option,
    report_options,
)
from memplan_cli.progress import waiting


@memplan_command(
    "profile",
    "memplan profile step.onnx -o costs.json",
    "memplan rewrite step.onnx --budget 60% --costs costs.json",
)
@click.argument("model", type=PATH)
@output_option("Write the seconds (JSON) to this file; - is stdout.", required=True)
@dim_option()
@options(ProfileOptions)
@report_options(output=None, format_help="Format of the report on stdout.")
def command(model: Path, output: Path, dims: tuple[str, ...], report: Report, **asked: Any) -> int:
    """Measure how long each node of MODEL takes, for 'memplan rewrite --costs'.

    MODEL runs in a tuned session in a separate process, so its peak must fit in memory. The report
    compares estimated with measured seconds, by operator.
    """
    from memplan.api.profiling import profile
    from memplan.planning.costs import costs_text
    from memplan.report.tell.profile import tell_profile

    to_stdout = one_on_stdout(output, report.form, "the costs and the report")
    guard_output(output, report.force, model, asked["inputs"])
    runs = counted(asked["runs"], "run")
    with waiting(report, f"profiling {model.name}: {runs} after two to warm up"):
        result = profile(model, ProfileOptions(**asked), dims=bound(dims))
    emit(costs_text(result.costs()), output, report.force)
    if report.form == "json":
        report.emit_json({**result.as_json(), "output": str(output)})
    elif not to_stdout:
        report.tell(result, str(output), partial(tell_profile, result, output))
    return 0
