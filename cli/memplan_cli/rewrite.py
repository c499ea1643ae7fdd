"""``memplan rewrite``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from memplan.errors import InfeasibleError, UsageError
from memplan.option_fields import declared
from memplan.options import RewriteOptions
from memplan_cli.command import memplan_command
from memplan_cli.options import (
    PATH,
    Report,
    bound,
    dim_option,
    emit_model,
    one_on_stdout,
    options,
    output_option,
    refuse_copy,
    report_options,
)
from memplan_cli.progress import planning_progress

if TYPE_CHECKING:
    from memplan.api.rewrite.rewrite_result import Rewrite

_ALL_BUT_BUDGET = tuple(name for name in declared(RewriteOptions) if name != "budget")


@memplan_command(
    "rewrite",
    "memplan rewrite step.onnx --budget 60%",
    "memplan rewrite step.onnx --budget 4GB --session default -o small.onnx",
)
@click.argument("model", type=PATH)
@options(RewriteOptions, "budget", required=False)
@output_option("The new model; - is stdout.  [default: MODEL.memplan.onnx]")
@dim_option()
@options(RewriteOptions, *_ALL_BUT_BUDGET)
@click.option(
    "--plan-out",
    type=PATH,
    help="Also write the plan to this JSON file, to apply again with --plan.",
)
@click.option(
    "--plan",
    type=PATH,
    help="Apply the plan in this file instead of searching, for the same bytes; a graph that has "
    "changed is refused.",
)
@click.option("--dry-run", is_flag=True, help="Plan and verify, but write nothing.")
@report_options(output=None, format_help="Format of the report on stdout.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    model: Path,
    budget: str | None,
    output: Path | None,
    dims: tuple[str, ...],
    plan: Path | None,
    plan_out: Path | None,
    dry_run: bool,
    report: Report,
    **asked: Any,
) -> int:
    """Rewrite MODEL to fit a memory budget.

    Decides what to keep and what to recompute, verifies the result by simulation and writes a new
    file. MODEL itself is not changed.
    """
    from memplan.report.tell.rewrite import tell_rewrite

    weights = asked["weights"]
    to_stdout = one_on_stdout(None if dry_run else output, report.form, "the model and the JSON")
    refuse_copy(to_stdout, weights)
    target = _Target(
        output=None if to_stdout or dry_run else output,
        force=report.force,
        dry_run=dry_run or to_stdout,
    )
    _one_measure(ctx)
    _check_plan_files(
        ctx, {*asked, "dims"} - {"weights"}, (model, plan), (output, plan_out), report.force
    )
    if plan is not None:
        from memplan.api.rewrite.rewriting import replay

        typed = ctx.get_parameter_source("budget") is ParameterSource.COMMANDLINE
        held = budget if typed else None
        result = replay(model, plan, budget=held, weights=weights, **asdict(target))
    else:
        result = _planned(model, budget, bound(dims), asked, target, report)
    if plan_out is not None:
        result.record.save(plan_out, force=report.force)
    if to_stdout:
        emit_model(result)
    elif report.form == "json" or not report.quiet or result.output is not None:
        report.tell(result, str(result.output), partial(tell_rewrite, result))
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
    dims: Mapping[str, int],
    asked: dict[str, Any],
    target: _Target,
    report: Report,
) -> Rewrite:
    """The result of a search."""
    from memplan.api.rewrite.rewriting import rewrite

    budget = _budget(budget, asked["strategy"])
    given = {name: value for name, value in asked.items() if value is not None}
    how = RewriteOptions(budget, **given)  # type: ignore[arg-type]
    seconds = None if how.effort else how.time_limit
    with planning_progress(report, model, budget, seconds) as progress:
        try:
            return rewrite(model, how, dims=dims, progress=progress, **asdict(target))
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
