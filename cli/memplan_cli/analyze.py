"""``memplan analyze``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memplan.options import RewriteOptions
from memplan_cli.command import memplan_command
from memplan_cli.options import OPTIONS, PATH, Report, bound, dim_option, options, report_options
from memplan_cli.progress import waiting


@memplan_command(
    "analyze",
    "memplan analyze step.onnx --dim N=32",
    "memplan analyze step.onnx --format html -o step.html",
)
@click.argument("model", type=PATH)
@dim_option()
@options(RewriteOptions, "session", "provider")
@options(RewriteOptions, "loss", "state", heading=OPTIONS)
@click.option(
    "--top",
    type=click.IntRange(min=0),
    metavar="N",
    default=20,
    show_default=True,
    help="List this many tensors.",
)
@report_options("text", "json", "html", "torch-snapshot")
def command(
    model: Path,
    dims: tuple[str, ...],
    top: int,
    report: Report,
    **asked: Any,
) -> int:
    """Account for every byte of MODEL's peak, and say why each is still in memory.

    MODEL is an ONNX file, or FILE.py:FUNCTION as for capture, whose code is run. No step is run.
    With --session default, ONNX Runtime loads the graph; otherwise no weights are read.
    """
    from memplan.api.analysis import analyze
    from memplan.report.parts import Line
    from memplan.report.tell.analysis import headline, tell_analysis

    report.guard(model)
    with waiting(report, f"analyzing {model.name}"):
        analysis = analyze(model, bound(dims), **asked)
    if report.form == "torch-snapshot":
        from memplan.report.torch_snapshot import torch_snapshot

        report.emit(torch_snapshot(analysis))
    else:
        answer = Line(headline(analysis))
        report.tell(analysis, answer, lambda _: tell_analysis(analysis, top))
    return 0
