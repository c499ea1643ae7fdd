"""``memplan diff``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from memplan.options import RewriteOptions
from memplan_cli.command import memplan_command
from memplan_cli.options import OPTIONS, PATH, Report, bound, dim_option, options, report_options
from memplan_cli.progress import waiting


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
@options(RewriteOptions, "session", "provider")
@options(RewriteOptions, "state", heading=OPTIONS)
@report_options("text", "json", "html")
def command(
    old: Path,
    new: Path,
    dims: tuple[str, ...],
    new_dims: tuple[str, ...],
    report: Report,
    **asked: Any,
) -> int:
    """Explain why NEW needs more or less memory than OLD, tensor by tensor.

    Both are ONNX files, or FILE.py:FUNCTION as for capture. Tensors are matched by structure, so
    renamed ones still match. No step is run. The exit code is 0 even if the peaks differ; to fail
    on growth, use 'memplan check'.
    """
    from memplan.api.diff.diffing import diff
    from memplan.report.parts import Line
    from memplan.report.tell.diff import headline, tell_diff

    report.guard(old, new)
    with waiting(report, f"comparing {old.name} and {new.name}"):
        found = diff(old, new, bound(dims), new_dims=bound(new_dims), **asked)
    report.tell(found, Line(headline(found)), partial(tell_diff, found))
    return 0
