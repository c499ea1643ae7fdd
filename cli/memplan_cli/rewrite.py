"""``memplan rewrite``."""

from __future__ import annotations

import json
from pathlib import Path

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
from memplan_cli.progress import planning_progress


@click.command("rewrite")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--budget",
    metavar="SIZE",
    help="4GB, 3.7GiB, bytes, or 60% of the peak before. Required, except for strategies "
    "that ignore it: 100% then.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Default: MODEL.memplan.onnx."
)
@model_options
@click.option(
    "--strategy",
    default="auto",
    show_default=True,
    metavar="NAME{opt=..}",
    help="How to choose what to recompute.",
)
@click.option("--session", type=click.Choice(SESSIONS), default="tuned", show_default=True)
@click.option("--provider", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option(
    "--optimize",
    type=click.Choice(["none", "basic", "extended"]),
    default="extended",
    show_default=True,
    help="Let ONNX Runtime fuse nodes first.",
)
@click.option(
    "--passes",
    default="all",
    show_default=True,
    metavar="NAMES",
    help="Free savings first: all, none, or elide,prune,order,early-update.",
)
@click.option(
    "--wrt",
    multiple=True,
    metavar="GLOB",
    help="Only the gradients of these parameters are wanted.",
)
@click.option("--keep", multiple=True, metavar="GLOB", help="Never recompute these tensors.")
@click.option("--recompute", multiple=True, metavar="GLOB", help="Recompute these in any case.")
@click.option(
    "--scan-recompute",
    metavar="NAMES",
    help="What backward loops make again at every step instead of reading what forward loops "
    "stacked: all, auto (what is cheap), names as in 'a+b*', none, or fit (what the budget needs; "
    "the default with --strategy auto).",
)
@click.option("--reserve", default=None, metavar="SIZE", help="Take this off the budget.")
@click.option("--costs", type=click.Path(path_type=Path), help="Measured seconds per node (JSON).")
@click.option(
    "--profile", is_flag=True, help="Measure the seconds per node first (runs the model as it is)."
)
@click.option("--device", default=None, metavar="NAME", help="Device profile for cost estimates.")
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    metavar="S",
    help="Seconds for planning.",
)
@click.option("--dry-run", is_flag=True, help="Plan and verify, write nothing.")
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)
@output_options
@configuration_option
def command(
    model: Path,
    budget: str | None,
    output: Path | None,
    dims: tuple[str, ...],
    loss: str | None,
    strategy: str,
    session: str,
    provider: str,
    optimize: str,
    passes: str,
    wrt: tuple[str, ...],
    keep: tuple[str, ...],
    recompute: tuple[str, ...],
    scan_recompute: str | None,
    reserve: str | None,
    costs: Path | None,
    profile: bool,
    device: str | None,
    time_limit: float,
    dry_run: bool,
    form: str,
    quiet: bool,
    verbose: int,
    color: str,
    force: bool,
) -> int:
    """Rewrite MODEL so that its peak fits a memory budget.

    Decides what to keep and what to recompute, verifies the result by simulation and writes a new
    file. MODEL is not touched.
    """
    from memplan.api.rewrite.run import RewriteOptions, rewrite
    from memplan.strategies.builtin import parse_strategy
    from memplan.units import SizeSpec, parse_size

    if budget is None:
        if not parse_strategy(strategy).ignores_budget:
            raise click.MissingParameter(param_type="option", param_hint="'--budget'")
        # Such a plan is not to be worse than the graph as it is.
        budget = "100%"
    options = RewriteOptions(
        budget=parse_size(budget),
        reserve=parse_size(reserve) if reserve else SizeSpec("0", 0, None),
        strategy=strategy,
        session=session,
        provider=provider,
        optimize=optimize,
        time_limit=time_limit,
        keep=keep,
        recompute=recompute,
        scan_recompute=scan_recompute or "",
        costs=costs,
        profile=profile,
        device=device,
        loss=loss,
        passes=passes,
        wrt=wrt,
    )
    to_stdout = output is not None and str(output) == "-" and not dry_run
    if to_stdout and form == "json":
        raise UsageError(
            "the model and the JSON cannot both go to stdout", "give a file name to -o"
        )
    keep_inputs(output, model, costs)
    with planning_progress(quiet) as progress:
        result = rewrite(
            model,
            options,
            None if to_stdout or dry_run else output,
            dims=bound(dims),
            force=force,
            dry_run=dry_run or to_stdout,
            progress=progress,
        )
    if to_stdout:
        emit(result.model.SerializeToString(), None, force)
    elif form == "json":
        emit(json.dumps(result.as_json(), indent=2) + "\n", None, force)
    elif quiet:
        if result.output is not None:
            click.echo(str(result.output))
    else:
        from memplan.report.terminal.base import print_rewrite

        print_rewrite(result, color=color, details=verbose > 0)
    return 0
