"""``memplan sweep``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memplan.errors import UsageError
from memplan.options import DEFAULT_EFFORT, DEFAULT_PLAN, SESSIONS, RewriteOptions, SweepOptions
from memplan.providers import PROVIDERS
from memplan_cli.command import memplan_command
from memplan_cli.options import OPTIONS, PATH, Report, options, report_options, size_of_dim
from memplan_cli.progress import points_progress

if TYPE_CHECKING:
    from memplan.api.sweep.sweep_result import Sweep


def _words(known: tuple[str, ...]) -> Any:
    """The callback of an option that takes some of the ``known`` words, with commas between."""

    def parse(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
        words = tuple(dict.fromkeys(word.strip() for word in value.split(",")))
        for word in words:
            if word not in known:
                raise click.BadParameter(
                    f"'{word}' is not one of {', '.join(known)}.", ctx, parameter
                )
        return words

    return parse


@memplan_command(
    "sweep",
    "memplan sweep step.onnx --dim N=8,16,32 --budget 8GB,60%",
    "memplan sweep step.onnx --fit 24GB",
)
@click.argument("models", nargs=-1, required=True, metavar="MODEL...", type=PATH)
@click.option(
    "--dim",
    "dims",
    multiple=True,
    metavar="NAME=SIZES",
    help="Set the sizes of a symbolic dimension to try, as in N=8,16,32. Repeatable.",
)
@click.option(
    "--budget",
    "budgets",
    metavar="SIZES",
    help="Memory budgets to try, as in 8GB,60%.  [default: none; only the peak is reported]",
)
@click.option(
    "--fit",
    metavar="SIZE",
    help="Find the largest size of a dimension that fits this budget, and its extra time.",
)
@options(SweepOptions, "fit_dim", "fit_step")
@click.option(
    "--session",
    "sessions",
    default="tuned",
    show_default=True,
    metavar="KINDS",
    callback=_words(SESSIONS),
    help="How you will load the results: tuned, default, or tuned,default for both.",
)
@click.option(
    "--provider",
    "providers",
    default="cpu",
    show_default=True,
    metavar="NAMES",
    callback=_words(tuple(PROVIDERS)),
    help=f"The execution providers to plan for, of {', '.join(PROVIDERS)}; cpu,cuda for two.",
)
@options(RewriteOptions, "loss", "strategy", "chunk", "device", heading=OPTIONS)
@options(
    RewriteOptions,
    "effort",
    type=click.IntRange(min=1),
    default=DEFAULT_EFFORT,
    show_default=True,
    help="Rounds of each search; the plans are the same on every machine.",
)
@options(
    RewriteOptions,
    "time_limit",
    default=None,
    help="Seconds for each plan, instead of --effort.",
)
@options(SweepOptions, "jobs")
@report_options("text", "json", "csv", "html")
def command(
    models: tuple[Path, ...],
    dims: tuple[str, ...],
    budgets: str | None,
    fit: str | None,
    sessions: tuple[str, ...],
    providers: tuple[str, ...],
    report: Report,
    **asked: Any,
) -> int:
    """Plan MODELs for many sizes and budgets, in one table.

    Every combination is a row: peak, floor and, for a budget, the planned peak, the extra time and
    its lower bound. A row that fails says why; the exit code is 0 unless all of them fail. No
    model is written.
    """
    from memplan.api.sweep.sweeping import sweep

    report.guard(*models)
    if asked["time_limit"] is not None:
        asked["effort"] = 0
    given = {name: value for name, value in asked.items() if value is not None}
    own = {name: given.pop(name) for name in SweepOptions.__slots__ if name in given}
    how = SweepOptions(replace(DEFAULT_PLAN, **given), **own)
    try:
        with points_progress(report) as progress:
            result = sweep(
                models,
                tuple(part.strip() for part in budgets.split(",")) if budgets else (),
                dims=_sizes(dims),
                sessions=sessions,
                providers=providers,
                fit=fit,
                options=how,
                progress=progress,
            )
    except KeyboardInterrupt as error:
        error.hint = "fewer sizes or budgets, or a lower --effort, take less time"  # type: ignore[attr-defined]
        raise
    if result.points or result.error is None:
        _tell(result, report)
    if result.error is not None:
        raise result.error
    return 0


def _sizes(dims: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """``--dim NAME=SIZE,SIZE`` as sizes by name.

    Raises:
        UsageError: malformed, or a dimension is given twice.
    """
    result: dict[str, tuple[int, ...]] = {}
    for text in dims:
        name, _, sizes = text.rpartition("=")
        found = [size_of_dim(size.strip()) for size in sizes.split(",")]
        if not name or None in found:
            raise UsageError(
                f"--dim {text}: expected NAME=SIZE,SIZE with sizes of at least 1",
                "for example --dim N=8,16,32",
            )
        if name in result:
            raise UsageError(f"--dim {name} is given twice", "--dim N=8,16 has both sizes")
        result[name] = tuple(size for size in found if size is not None)
    return result


def _tell(result: Sweep, report: Report) -> None:
    from memplan.report.parts import Line
    from memplan.report.tell.sweep import headline, tell_sweep

    if report.form == "csv":
        from memplan.report.sweep_csv import sweep_csv

        report.emit(sweep_csv(result))
    else:
        report.tell(result, Line(headline(result)), partial(tell_sweep, result))
