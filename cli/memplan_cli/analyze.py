"""``memplan analyze``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from memplan.options import RewriteOptions
from memplan_cli.command import memplan_command
from memplan_cli.options import OPTIONS, PATH, Report, bound, dim_option, options, report_options
from memplan_cli.progress import waiting

if TYPE_CHECKING:
    from memplan.api.analysis import Analysis

# Lines that a report takes beside its list of tensors, and the shortest list on a small terminal.
_LINES_BESIDE_TENSORS = 35
_FEWEST_TENSORS = 5


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
    help="List this many tensors (fewer by default on a small terminal).",
)
@report_options("text", "json", "html", "torch-snapshot")
@click.pass_context
def command(
    ctx: click.Context,
    /,
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

    report.guard(model)
    with waiting(report, f"analyzing {model.name}"):
        analysis = analyze(model, bound(dims), **asked)
    if report.form == "json":
        report.emit_json(analysis.as_json())
    elif report.form == "text":
        if ctx.get_parameter_source("top") is ParameterSource.DEFAULT:
            top = _fitting(top, report)
        report.emit(_text(analysis, top, report))
    else:
        report.emit(_exported(analysis, top, report.form))
    return 0


def _text(analysis: Analysis, top: int, report: Report) -> str:
    from memplan.report.parts import Line
    from memplan.report.tell.analysis import headline, tell_analysis

    answer = Line(headline(analysis))
    if report.quiet:
        return report.text_of(answer)
    text = report.text_of(*tell_analysis(analysis, top).parts)
    height = _screen_lines(report)
    if height is not None and text.count("\n") >= height:
        # The first line has left the screen; the answer is to be the last thing to be seen.
        text += "\n" + report.text_of(answer)
    return text


def _fitting(top: int, report: Report) -> int:
    """``top``, or fewer tensors where the report would fill a small terminal twice."""
    height = _screen_lines(report)
    if height is None or report.details:
        return top
    return min(top, max(_FEWEST_TENSORS, height - _LINES_BESIDE_TENSORS))


def _screen_lines(report: Report) -> int | None:
    """The height of the terminal that a report goes to; None if there is none."""
    if not (report.to_stdout and sys.stdout.isatty()):
        return None
    return shutil.get_terminal_size().lines


def _exported(analysis: Analysis, top: int, form: str) -> str | bytes:
    if form == "html":
        from memplan.report.html.page import page
        from memplan.report.tell.analysis import tell_analysis

        return page(tell_analysis(analysis, top))
    from memplan.report.torch_snapshot import torch_snapshot

    return torch_snapshot(analysis)
