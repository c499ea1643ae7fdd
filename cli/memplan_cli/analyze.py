"""``memplan analyze``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from memplan_cli.options import (
    SESSIONS,
    bound,
    configuration_option,
    emit,
    keep_inputs,
    model_options,
    output_options,
)

FORMATS = ("text", "json", "html", "chrome-trace", "torch-snapshot")


@click.command("analyze")
@click.argument("model", type=click.Path(path_type=Path))
@model_options
@click.option("--session", type=click.Choice(SESSIONS), default="tuned", show_default=True,
              help="How the model will be loaded.")  # fmt: skip
@click.option("--provider", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True,
              help="Which execution provider's rules apply.")  # fmt: skip
@click.option("--top", type=click.IntRange(min=0), default=20, show_default=True,
              help="How many tensors to list.")  # fmt: skip
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
    from memplan.analysis import analyze

    keep_inputs(output, model)
    if output is not None and str(output) != "-":
        from memplan.model.write import check_output

        check_output(output, force)
    analysis = analyze(model, bound(dims), session=session, provider=provider, loss=loss)
    if form == "text" and output is None:
        from memplan.report.text import print_analysis

        print_analysis(analysis, top=top, color=color, brief=quiet, details=verbose > 0)
        return 0
    emit(_render(analysis, form, top), output, force)
    return 0


def _render(analysis: object, form: str, top: int) -> str | bytes:
    from memplan.analysis import Analysis

    assert isinstance(analysis, Analysis)
    if form == "json":
        return json.dumps(analysis.as_json(), indent=2) + "\n"
    if form == "text":
        from memplan.report.text import analysis_text

        return analysis_text(analysis, top=top)
    if form == "html":
        from memplan.report.html import analysis_html

        return analysis_html(analysis, top=top)
    if form == "chrome-trace":
        from memplan.report.chrome import chrome_trace

        return chrome_trace(analysis)
    from memplan.report.snapshot import torch_snapshot

    return torch_snapshot(analysis)
