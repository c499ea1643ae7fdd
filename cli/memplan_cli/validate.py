"""``memplan validate``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from memplan.errors import EXIT_FINDING
from memplan_cli.options import bound, configuration_option, emit, keep_inputs, output_options


@click.command("validate")
@click.argument("original", type=click.Path(path_type=Path))
@click.argument("rewritten", type=click.Path(path_type=Path))
@click.option(
    "--dim", "dims", multiple=True, metavar="NAME=SIZE", help="Default: as recorded in REWRITTEN."
)
@click.option(
    "--provider", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True
)
@click.option(
    "--runs", type=click.IntRange(min=1), default=5, show_default=True, help="Timed runs per model."
)
@click.option("--inputs", type=click.Path(path_type=Path), help="Inputs as .npz; default: made up.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--threads", type=click.IntRange(min=0), default=0, help="0: the runtime's choice.")
@click.option("--plain/--no-plain", default=True, help="Also run ORIGINAL with every default on.")
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="A file, or - for stdout.")
@output_options
@configuration_option
def command(
    original: Path,
    rewritten: Path,
    dims: tuple[str, ...],
    provider: str,
    runs: int,
    inputs: Path | None,
    seed: int,
    threads: int,
    plain: bool,
    form: str,
    output: Path | None,
    quiet: bool,
    verbose: int,
    color: str,
    force: bool,
) -> int:
    """Run ORIGINAL and REWRITTEN, each in a process of its own, and compare.

    Exit code 1 if the outputs differ, the measured peak breaks the recorded budget, or recomputed
    nodes did not run as planned.
    """
    from memplan.api.validate.run import ValidateOptions, validate

    keep_inputs(output, original, rewritten, inputs)
    if output is not None and str(output) != "-":
        from memplan.proto.write import check_output

        check_output(output, force)
    options = ValidateOptions(provider, runs, inputs, seed, threads, plain)
    result = validate(original, rewritten, options, dims=bound(dims))
    if form == "json":
        emit(json.dumps(result.as_json(), indent=2) + "\n", output, force)
    elif quiet:
        emit(result.summary + "\n", output, force)
    else:
        from memplan.report.terminal.base import print_validation, render_validation, to_text

        if output is None:
            print_validation(result, color=color, details=verbose > 0)
        else:
            emit(to_text(render_validation(result, True)), output, force)
    return EXIT_FINDING if result.findings else 0
