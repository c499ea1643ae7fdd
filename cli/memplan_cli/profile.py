"""``memplan profile``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from memplan.errors import UsageError
from memplan_cli.options import bound, configuration_option, emit, keep_inputs, output_options


@click.command("profile")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="The costs file (JSON), or - for stdout.",
)
@click.option(
    "--dim", "dims", multiple=True, metavar="NAME=SIZE", help="Bind a symbolic dimension."
)
@click.option("--provider", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Measured runs, after two to warm up.",
)
@click.option("--inputs", type=click.Path(path_type=Path), help="Inputs as .npz; default: made up.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--threads", type=click.IntRange(min=0), default=0, help="0: the runtime's choice.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Of the report on stdout.",
)
@output_options
@configuration_option
def command(
    model: Path,
    output: Path,
    dims: tuple[str, ...],
    provider: str,
    runs: int,
    inputs: Path | None,
    seed: int,
    threads: int,
    form: str,
    quiet: bool,
    verbose: int,
    color: str,
    force: bool,
) -> int:
    """Measure the seconds that every node of MODEL takes, for 'rewrite --costs'.

    Runs MODEL in a tuned session, in a process of its own; it needs its whole peak of memory.
    Reports how far the estimates are from the measurement, by operator.
    """
    from memplan.api.profile import ProfileOptions, profile
    from memplan.planning.costs import costs_text

    to_stdout = str(output) == "-"
    if to_stdout and form == "json":
        raise UsageError(
            "the costs and the report cannot both go to stdout", "give a file name to -o"
        )
    keep_inputs(output, model, inputs)
    if not to_stdout:
        from memplan.proto.write import check_output

        check_output(output, force)
    result = profile(model, ProfileOptions(provider, runs, inputs, seed, threads), dims=bound(dims))
    emit(costs_text(result.costs()), output, force)
    if form == "json":
        report = {**result.as_json(), "output": str(output)}
        emit(json.dumps(report, indent=2) + "\n", None, force)
    elif not to_stdout and quiet:
        click.echo(str(output))
    elif not to_stdout:
        from memplan.report.terminal.profile import print_profile

        print_profile(result, output, color=color, details=verbose > 0)
    return 0
