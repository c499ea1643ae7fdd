"""``memplan check``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from memplan.errors import EXIT_FINDING, EXIT_OK, UsageError
from memplan_cli.command import memplan_command
from memplan_cli.failures import tell
from memplan_cli.progress import models_progress
from memplan_cli.shared_options import (
    PATH,
    Report,
    bound,
    dim_option,
    provider_option,
    report_options,
    session_option,
)

if TYPE_CHECKING:
    from memplan.api.check.checking import CheckResult, UpdateResult

# The first word of a line decides its colour.
_COLORS = {
    "FAIL": "red",
    "ok": "green",
    "improved": "cyan",
    "accounting-changed": "yellow",
    "added": "green",
    "changed": "yellow",
    "removed": "yellow",
}


@memplan_command(
    "check",
    "memplan check --update step.onnx --dim N=32",
    "memplan check --max-peak 4GB",
)
@click.argument("models", nargs=-1, metavar="[MODEL]...", type=PATH)
@click.option(
    "--lock",
    type=PATH,
    default="memplan.lock",
    show_default=True,
    help="The lock file; it names models relative to its folder.",
)
@click.option(
    "--update", is_flag=True, help="Record today's peaks (of MODELs, else of the whole lock)."
)
@click.option("--max-peak", metavar="SIZE", help="Also fail every model with a higher peak.")
@dim_option("With --update: give a symbolic dimension its size.")
@session_option("With --update: how models will be loaded; else as in the lock.")
@provider_option("With --update: whose rules apply; else as in the lock.")
@report_options()
@click.pass_context
def command(
    ctx: click.Context,
    models: tuple[Path, ...],
    lock: Path,
    update: bool,
    max_peak: str | None,
    dims: tuple[str, ...],
    session: str,
    provider: str,
    report: Report,
) -> int:
    """Compare the peaks of models with a committed lock; exit 1 when one is above its limit.

    Without MODELs, all of the lock are compared. Models are analyzed as the lock recorded them;
    nothing is run, and nothing is written without --update.
    """
    from memplan.api.check.checking import CheckRequest, files_read, run_check, run_update

    cap = _cap(max_peak)
    request = CheckRequest(
        lock=lock,
        models=models,
        dims=bound(dims),
        session=_named(ctx, "session"),
        provider=_named(ctx, "provider"),
        new_session=session,
        new_provider=provider,
        max_peak_bytes=cap,
    )
    if not report.to_stdout:
        read, written = ((), (lock,)) if update else ((lock,), ())
        report.guard(*read, *files_read(request), others=written)
    result: CheckResult | UpdateResult
    with models_progress(report) as progress:
        result = run_update(request, progress) if update else run_check(request, progress)
    if report.form == "json":
        text = _json(result)
    else:
        lines = [_echoed(max_peak)] if max_peak is not None and not report.quiet else []
        lines += _lines(result, brief=report.quiet, details=report.details)
        text = _painted(lines, _colored(report))
    report.emit(text)
    _raise_failures(result)
    return EXIT_FINDING if result.failed else EXIT_OK


def _named(ctx: click.Context, option: str) -> str | None:
    """The option's value if it stands on the command line.

    A default from pyproject.toml is for models that are added: it must not contradict a lock.
    """
    if ctx.get_parameter_source(option) is not ParameterSource.COMMANDLINE:
        return None
    return str(ctx.params[option])


def _cap(max_peak: str | None) -> int | None:
    """``--max-peak`` in bytes."""
    if max_peak is None:
        return None
    from memplan.units import parse_size

    nbytes = parse_size(max_peak).nbytes
    if nbytes is None:
        raise UsageError(
            f"--max-peak {max_peak}: a percentage of what?",
            'give a size; for room above the lock, add tolerance = "1%" to a model in the lock',
        )
    return nbytes


def _echoed(max_peak: str) -> str:
    from memplan.units import echo_size, parse_size

    size = parse_size(max_peak)
    return f"max peak {echo_size(size, size.resolve(0))}"


def _json(result: CheckResult | UpdateResult) -> str:
    from memplan.api.check.checking import CheckResult
    from memplan.api.check.json_report import check_json, update_json

    return check_json(result) if isinstance(result, CheckResult) else update_json(result)


def _lines(result: CheckResult | UpdateResult, *, brief: bool, details: bool) -> list[str]:
    from memplan.api.check.checking import CheckResult
    from memplan.api.check.text import check_lines, update_lines

    if isinstance(result, CheckResult):
        return check_lines(result, brief=brief, details=details)
    return update_lines(result, brief=brief)


def _raise_failures(result: CheckResult | UpdateResult) -> None:
    """Say what could not be read, after all else was reported; the worst one ends the command.

    Raises:
        MemplanError: a model could not be read.
    """
    errors = sorted((failure.error for failure in result.failures), key=lambda e: e.exit_code)
    for error in errors[:-1]:
        tell(error.message, error.hint)
    if errors:
        raise errors[-1]


def _painted(lines: Iterable[str], colored: bool) -> str:
    text = ""
    for line in lines:
        word = line.split(" ", 1)[0]
        color = _COLORS.get(word) if colored else None
        # Only the first word: what follows is there to be copied.
        text += (
            click.style(word, fg=color, bold=True) + line[len(word) :] if color else line
        ) + "\n"
    return text


def _colored(report: Report) -> bool:
    if report.color != "auto":
        return report.color == "always"
    to_terminal = report.to_stdout and sys.stdout.isatty()
    return to_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
