"""``memplan rewrite``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from memplan.errors import InfeasibleError, UsageError
from memplan_cli.command import memplan_command
from memplan_cli.progress import planning_progress
from memplan_cli.shared_options import (
    PATH,
    Report,
    bound,
    dim_option,
    emit,
    loss_option,
    one_on_stdout,
    provider_option,
    refuse_copy,
    report_options,
    session_option,
    state_option,
    strategy_names,
    time_limit_option,
    weights_option,
)

if TYPE_CHECKING:
    from memplan.api.rewrite.rewrite_result import Rewrite

_RARELY = (
    *("--loss", "--strategy", "--state", "--optimize", "--passes", "--offload", "--wrt"),
    *("--scan-recompute", "--reserve", "--costs", "--device", "--weights"),
)


# What the function does not name goes into RewriteOptions: such an option is named for its field.
@memplan_command(
    "rewrite",
    "memplan rewrite step.onnx --budget 60%",
    "memplan rewrite step.onnx --budget 4GB --session default -o small.onnx",
    rarely=_RARELY,
)
@click.argument("model", type=PATH)
@click.option(
    "--budget",
    metavar="SIZE",
    help="The memory budget: 4GB, 3.7GiB, a number of bytes, 60% (of the original peak), or min "
    "(the lowest peak that is found). Required, unless the strategy ignores it.",
)
@click.option(
    "-o",
    "--output",
    type=PATH,
    help="Write the new model to this file; - is stdout.  [default: MODEL.memplan.onnx]",
)
@dim_option()
@loss_option
@click.option(
    "--strategy",
    default="auto",
    show_default=True,
    metavar="NAME{opt=..}",
    shell_complete=strategy_names,
    help="How to choose what to recompute; 'memplan strategies' lists all.",
)
@session_option("How you will load the result: tuned (by memplan.load), or with default options.")
@provider_option("The execution provider to plan for.")
@state_option
@click.option(
    "--optimize",
    type=click.Choice(["none", "extended"]),
    default="extended",
    show_default=True,
    help="Let ONNX Runtime fuse nodes first, at its level 'extended'.",
)
@click.option(
    "--passes",
    type=click.Choice(["all", "none"]),
    default="all",
    show_default=True,
    help="Changes to make first, which save memory and cost no time.",
)
@click.option(
    "--chunk",
    default="none",
    show_default=True,
    metavar="WHAT",
    help="Run parts of the step in chunks, forward and backward together: regions (around large "
    "tensors such as logits and loss), layers (the last layers, one part of the batch at a "
    "time), a number of chunks, or auto (whichever plan is cheapest). The last bits may differ.",
)
@click.option(
    "--offload",
    is_flag=True,
    help="On CUDA, also move tensors to host memory and back where that is cheaper than "
    "recomputing them. Experimental: never measured on a GPU.",
)
@click.option(
    "--wrt",
    multiple=True,
    metavar="GLOB",
    help="Keep the gradients of these parameters and remove all others. Repeatable.",
)
@click.option(
    "--keep",
    multiple=True,
    metavar="SELECTOR",
    help="Never recompute these tensors: 'MODULE :: OPERATOR' (two globs), or a glob of names. "
    "Repeatable.",
)
@click.option(
    "--recompute",
    multiple=True,
    metavar="SELECTOR",
    help="Always recompute these tensors, as in 'blocks.*.mlp :: *'. Repeatable.",
)
@click.option(
    "--scan-recompute",
    default="",
    metavar="NAMES",
    help="What backward loops recompute at every step instead of reading what forward loops "
    "stored: none, all, names as in 'a+b*', or auto (nothing, what is cheap or all, whichever "
    "costs the least).  [default: auto when --strategy auto plans for a tuned session, else none]",
)
@click.option(
    "--reserve",
    metavar="SIZE",
    help="Subtract this from the budget, for memory outside the model (4GB, say).",
)
@click.option(
    "--costs",
    type=PATH,
    help="Plan with the measured seconds in this file, from 'memplan profile'.",
)
@click.option(
    "--device",
    metavar="NAME",
    help="The device whose speed to assume: h200, gh200, h100, a100, rtx4090 or cpu.  [default: as "
    "--provider suggests]",
)
@time_limit_option("Seconds for everything up to the new file.", 30.0)
@click.option(
    "--effort",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Search for N rounds instead of by the clock; the file is then the same on every machine.",
)
@weights_option
@click.option(
    "--plan-out",
    type=PATH,
    help="Also write the plan to this JSON file, to commit and to apply again with --plan.",
)
@click.option(
    "--plan",
    type=PATH,
    help="Apply the plan in this file instead of searching, for the same bytes; a graph that has "
    "changed since is refused.",
)
@click.option("--dry-run", is_flag=True, help="Plan and verify, but write nothing.")
@report_options(output=None, format_help="Format of the report on stdout.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    model: Path,
    budget: str | None,
    reserve: str | None,
    output: Path | None,
    dims: tuple[str, ...],
    plan: Path | None,
    plan_out: Path | None,
    dry_run: bool,
    report: Report,
    **options: Any,
) -> int:
    """Rewrite MODEL to fit a memory budget.

    Decides what to keep and what to recompute, verifies the result by simulation and writes a new
    file. MODEL itself is not changed.
    """
    weights = options["weights"]
    to_stdout = one_on_stdout(None if dry_run else output, report.form, "the model and the JSON")
    refuse_copy(to_stdout, weights)
    target = _Target(
        output=None if to_stdout or dry_run else output,
        force=report.force,
        dry_run=dry_run or to_stdout,
    )
    decided = {*options, "reserve", "dims"} - {"weights"}
    _one_measure(ctx)
    _check_plan_files(ctx, decided, (model, plan), (output, plan_out), report.force)
    if plan is not None:
        from memplan.api.rewrite.rewriting import replay

        typed = ctx.get_parameter_source("budget") is ParameterSource.COMMANDLINE
        held = budget if typed else None
        result = replay(model, plan, budget=held, weights=weights, **asdict(target))
    else:
        result = _planned(model, budget, reserve, bound(dims), options, target, report)
    if plan_out is not None:
        result.record.save(plan_out, force=report.force)
    if to_stdout:
        from memplan.proto.metadata import sealed_bytes

        emit(sealed_bytes(result.model))
    elif report.form == "json":
        report.emit_json(result.as_json())
    elif report.quiet:
        if result.output is not None:
            click.echo(str(result.output))
    else:
        from memplan.report.tell.rewrite import tell_rewrite

        report.emit_text(tell_rewrite(result, report.in_full))
    return 0


@dataclass(frozen=True, slots=True)
class _Target:
    """What is written; ``output`` None: nothing, or where it is by default."""

    output: Path | None
    force: bool
    dry_run: bool


def _planned(
    model: Path,
    budget: str | None,
    reserve: str | None,
    dims: Mapping[str, int],
    options: dict[str, Any],
    target: _Target,
    report: Report,
) -> Rewrite:
    """The result of a search."""
    from memplan.api.rewrite.rewriting import RewriteOptions, rewrite
    from memplan.units import parse_budget, parse_size

    budget = _budget(budget, options["strategy"])
    if reserve:
        options["reserve"] = parse_size(reserve)
    asked = RewriteOptions(budget=parse_budget(budget), **options)
    seconds = None if asked.effort else asked.time_limit
    with planning_progress(report, model, budget, seconds) as progress:
        try:
            return rewrite(model, asked, dims=dims, progress=progress, **asdict(target))
        except InfeasibleError as error:
            error.hint = _percent_hint(budget) or error.hint
            raise


def _check_plan_files(
    ctx: click.Context,
    decided: Collection[str],
    read: tuple[Path, Path | None],
    written: tuple[Path | None, Path | None],
    force: bool,
) -> None:
    """Refuse options that a plan decides, and files that would be written over.

    Args:
        ctx: the command.
        decided: names of the options that a plan decides.
        read: the model and the plan.
        written: the model and the plan.
        force: overwrite files.

    Raises:
        UsageError: one is given.
    """
    from memplan.proto.write import check_output, keep_apart

    plan, plan_out = read[1], written[1]
    if plan is not None:
        for param in ctx.command.params:
            given = ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
            if given and param.name in decided:
                raise UsageError(
                    f"{param.opts[0]} is decided by the plan",
                    f"drop it, or plan again without --plan {plan}",
                )
    if plan_out is not None:
        keep_apart(written[::-1], *read)
        check_output(plan_out, force)


def _one_measure(ctx: click.Context) -> None:
    """Refuse rounds and seconds that are both given: rounds are not cut short by a clock.

    Raises:
        UsageError: they are.
    """
    typed = ("effort", "time_limit")
    if all(ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in typed):
        raise UsageError(
            "--effort counts rounds of the search, --time-limit its seconds: only one can be given",
            "drop --effort for a search by the clock, or --time-limit for the same file everywhere",
        )


def _budget(budget: str | None, strategy: str) -> str:
    """The budget; strategies that ignore it get one so as not to be worse than the graph as it is.

    Raises:
        click.MissingParameter: there is none, and the strategy needs it.
    """
    from memplan.solver.strategies.builtin import parse_strategy

    if budget is None:
        if not parse_strategy(strategy).ignores_budget:
            raise click.MissingParameter(param_type="option", param_hint="'--budget'")
        return "100%"
    return budget


def _percent_hint(budget: str) -> str:
    """For ``--budget 60``, which is 60 bytes."""
    number = budget.strip()
    if not number.isdecimal() or int(number) > 100:
        return ""
    return f"a bare number is bytes; did you mean --budget {number}%?"
