"""``memplan analyze``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memplan.errors import UsageError
from memplan_cli.options import (
    SESSIONS,
    bound,
    configuration_option,
    emit,
    keep_inputs,
    model_options,
    output_options,
)
from memplan_cli.progress import announce_compilation

if TYPE_CHECKING:
    from memplan.api.analyze import Analysis
    from memplan.api.frontier import FrontierPoint

FORMATS = ("text", "json", "html", "chrome-trace", "torch-snapshot")


@click.command("analyze")
@click.argument("model", type=click.Path(path_type=Path))
@model_options
@click.option(
    "--session",
    type=click.Choice(SESSIONS),
    default="tuned",
    show_default=True,
    help="How the model will be loaded.",
)
@click.option(
    "--provider",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Which execution provider's rules apply.",
)
@click.option(
    "--top",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="How many tensors to list.",
)
@click.option("--frontier", is_flag=True, help="Also: budget -> extra time, for a dozen budgets.")
@click.option("--placement", is_flag=True, help="Also: the smallest arena that holds all buffers.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="A file, or - for stdout.")
@output_options
@configuration_option
def command(
    model: Path,
    dims: tuple[str, ...],
    loss: str | None,
    session: str,
    provider: str,
    top: int,
    frontier: bool,
    placement: bool,
    form: str,
    output: Path | None,
    quiet: bool,
    verbose: int,
    color: str,
    force: bool,
) -> int:
    """Say what every byte of MODEL's peak is, and why it is alive.

    Nothing is run and no weights are read.
    """
    from memplan.api.analyze import analyze, with_placement
    from memplan.simulate.opened import open_model

    keep_inputs(output, model)
    if output is not None and str(output) != "-":
        from memplan.proto.write import check_output

        check_output(output, force)
    if frontier and session != "tuned":
        raise UsageError("--frontier plans for tuned sessions only", "leave --session away")
    points: tuple[FrontierPoint, ...] = ()
    if (frontier or placement) and not quiet:
        announce_compilation()
    if frontier:
        from memplan.api.frontier import find_frontier

        analysis, points = find_frontier(open_model(model, bound(dims), loss), provider)
    else:
        analysis = analyze(model, bound(dims), session=session, provider=provider, loss=loss)
    if placement:
        analysis = with_placement(analysis)
    if form == "text" and output is None:
        from memplan.report.terminal.base import print_analysis

        print_analysis(analysis, points, top=top, color=color, brief=quiet, details=verbose > 0)
        return 0
    emit(_render(analysis, points, form, top), output, force)
    return 0


def _render(
    analysis: Analysis, points: tuple[FrontierPoint, ...], form: str, top: int
) -> str | bytes:
    if form == "json":
        result = analysis.as_json()
        if points:
            result["frontier"] = [point.as_json() for point in points]
        return json.dumps(result, indent=2) + "\n"
    if form == "text":
        from memplan.report.terminal.base import analysis_text

        return analysis_text(analysis, points, top=top)
    if form == "html":
        from memplan.report.html.page import analysis_html

        return analysis_html(analysis, top=top)
    if form == "chrome-trace":
        from memplan.report.chrome_trace import chrome_trace

        return chrome_trace(analysis)
    from memplan.report.torch_snapshot import torch_snapshot

    return torch_snapshot(analysis)
