"""``memplan diff``."""

from __future__ import annotations

from pathlib import Path

import click

from memplan_cli.command import memplan_command
from memplan_cli.progress import waiting
from memplan_cli.shared_options import (
    PATH,
    Report,
    bound,
    dim_option,
    provider_option,
    report_options,
    session_option,
    state_option,
)


@memplan_command(
    "diff",
    "memplan diff before.onnx after.onnx --dim N=32",
    "memplan diff step.onnx step.memplan.onnx --format html -o before-after.html",
)
@click.argument("old", type=PATH)
@click.argument("new", type=PATH)
@dim_option("Set the size of a symbolic dimension in both models. Repeatable.")
@click.option(
    "--new-dim",
    "new_dims",
    multiple=True,
    metavar="NAME=SIZE",
    help="Set the size of a symbolic dimension in NEW only, to compare two sizes. Repeatable.",
)
@session_option("How you will load the models: tuned (by memplan.load), or with default options.")
@provider_option("The execution provider to analyze for.")
@state_option
@report_options("text", "json", "html")
def command(
    old: Path,
    new: Path,
    dims: tuple[str, ...],
    new_dims: tuple[str, ...],
    session: str,
    provider: str,
    state: tuple[str, ...],
    report: Report,
) -> int:
    """Explain why NEW needs more or less memory than OLD, tensor by tensor.

    Both are ONNX files, or FILE.py:FUNCTION as for capture. Tensors are matched by structure, so
    renamed ones still match. No step is run. The exit code is 0 even if the peaks differ; to fail
    on growth, use 'memplan check'.
    """
    from memplan.api.diff.diffing import diff

    report.guard(old, new)
    with waiting(report, f"comparing {old.name} and {new.name}"):
        found = diff(
            old,
            new,
            bound(dims),
            new_dims=bound(new_dims),
            session=session,
            provider=provider,
            state=state,
        )
    if report.form == "json":
        report.emit_json(found.as_json())
    elif report.form == "html":
        from memplan.report.html.page import page
        from memplan.report.tell.diff import tell_diff

        report.emit(page(tell_diff(found, details=True)))
    elif report.quiet:
        from memplan.report.parts import Line
        from memplan.report.tell.diff import headline

        report.emit(report.text_of(Line(headline(found))))
    else:
        from memplan.report.tell.diff import tell_diff

        report.emit_text(tell_diff(found, report.in_full))
    return 0
