"""``memplan check``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from memplan.errors import EXIT_FINDING, EXIT_OK, UsageError
from memplan.options import RewriteOptions
from memplan.report.check.formats import FORMATS, rendered
from memplan_cli.command import memplan_command
from memplan_cli.failures import tell
from memplan_cli.options import (
    PATH,
    Headed,
    Report,
    bound,
    dim_option,
    emit,
    options,
    report_options,
)
from memplan_cli.progress import waiting

if TYPE_CHECKING:
    from memplan.api.check.checking import CheckResult
    from memplan.units import SizeSpec

_RECORDED = "For --update and --base; models in the lock keep theirs unless given"
# The first word of a line decides its colour.
_COLORS = {
    "FAIL": "red",
    "ok": "green",
    "improved": "cyan",
    "accounting-changed": "yellow",
    "added": "green",
    "changed": "yellow",
    "removed": "yellow",
    "new": "cyan",
}


@memplan_command(
    "check",
    "memplan check --update step.onnx --dim N=32",
    "memplan check --base origin/main step.onnx --dim N=32",
)
@click.argument("models", nargs=-1, metavar="[MODEL]...", type=PATH)
@click.option(
    "--lock",
    type=PATH,
    default="memplan.lock",
    show_default=True,
    help="The lock file; model paths in it are relative to its folder.",
)
@click.option(
    "--update",
    is_flag=True,
    help="Write the current peaks of MODELs to the lock (without MODELs: of all in it).",
)
@click.option("--max-peak", metavar="SIZE", help="Also fail every model whose peak is above this.")
@click.option(
    "--base", metavar="REF", help="Also compare with the models at the merge-base of REF and HEAD."
)
@click.option(
    "--strict", is_flag=True, help="Also fail when the lock allows more than a model needs."
)
@click.option(
    "--report",
    "reports",
    multiple=True,
    metavar="FORMAT=FILE",
    help="Also write the result to a file in another format. Repeatable.",
)
@dim_option(heading=_RECORDED)
@options(RewriteOptions, "session", "provider", heading=_RECORDED)
@click.option(
    "--state",
    type=click.Choice(["in-place", "apart"]),
    cls=Headed,
    heading=_RECORDED,
    help="Where steps with an optimizer write new weights: in-place, as memplan.Trainer does, or "
    "apart.  [default: in-place]",
)
@report_options(*FORMATS)
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
    state: str | None,
    base: str | None,
    strict: bool,
    reports: tuple[str, ...],
    report: Report,
) -> int:
    """Fail with exit code 1 when a model's peak exceeds its limit in a committed lock file.

    MODEL is an ONNX file, or FILE.py:FUNCTION as for capture, whose code is run. Without MODELs,
    every model in the lock is checked, with the settings recorded there. No step is run, and the
    lock is written only with --update. --base needs no lock: models without an entry are compared
    with their peaks at the merge-base.
    """
    from memplan.api.check.checking import run_check, run_update
    from memplan.api.check.targets import CheckRequest
    from memplan.proto.write import check_output
    from memplan.units import echo_size

    cap = None if max_peak is None else _cap(max_peak)
    also = [_report_option(text) for text in reports]
    if update:
        _refuse_with_update(report.form, base, strict, also)
    request = CheckRequest(
        lock=lock,
        models=models,
        dims=bound(dims),
        session=_named(ctx, "session"),
        provider=_named(ctx, "provider"),
        state=None if state is None else state.replace("in-place", ""),
        max_peak_bytes=cap.nbytes if cap is not None else None,
        base=base,
        strict=strict,
    )
    files = [file for _, file in also]

    def guard(read: Iterable[Path]) -> None:
        if files or not report.to_stdout:
            locks, written = ((), (lock,)) if update else ((lock,), ())
            report.guard(*locks, *read, others=(*written, *files))
        for file in files:
            check_output(file, report.force)

    with waiting(report, "reading the lock") as show:

        def analyzing(index: int, total: int, path: str) -> None:
            show(f"analyzing {index + 1}/{total}: {path}")

        run = run_update if update else run_check
        result = run(request, analyzing, guard)
    for form, file in also:
        emit(rendered(result, form), file, report.force)
    if report.form != "text":
        text = rendered(result, report.form)
    else:
        lines = []
        if cap is not None and not report.quiet:
            lines.append(f"max peak {echo_size(cap, cap.resolve(0))}")
        lines += _lines(result, brief=report.quiet, details=report.details)
        text = _painted(lines, _colored(report))
    report.emit(text)
    _raise_failures(result)
    return EXIT_FINDING if result.failed else EXIT_OK


def _named(ctx: click.Context, option: str) -> str | None:
    """The option's value if it was given: a default must not contradict a lock."""
    if ctx.get_parameter_source(option) is not ParameterSource.COMMANDLINE:
        return None
    return str(ctx.params[option])


def _cap(max_peak: str) -> SizeSpec:
    """``--max-peak``."""
    from memplan.units import parse_size

    size = parse_size(max_peak)
    if size.nbytes is None:
        raise UsageError(
            f"--max-peak {max_peak}: expected a size, got a percentage",
            'give a size; for room above the lock, add tolerance = "1%" to a model in the lock',
        )
    return size


def _report_option(text: str) -> tuple[str, Path]:
    """``FORMAT=FILE``."""
    form, given, name = text.partition("=")
    if form not in FORMATS or not given or name in ("", "-"):
        raise UsageError(
            f"--report {text}: expected FORMAT=FILE",
            f"formats are {', '.join(FORMATS)}; for example --report markdown=memplan.md",
        )
    return form, Path(name)


def _refuse_with_update(form: str, base: str | None, strict: bool, also: Sequence[object]) -> None:
    """Options that belong to a comparison."""
    given = {"--base": base is not None, "--strict": strict, "--report": bool(also)}
    for option, there in given.items():
        if there:
            raise UsageError(f"--update cannot be combined with {option}", "compare first")
    if form not in ("text", "json"):
        raise UsageError(f"--update has no format '{form}'", "--format text or json")


def _lines(result: CheckResult, *, brief: bool, details: bool) -> list[str]:
    from memplan.api.check.text import check_lines, update_lines

    if result.updated is None:
        return check_lines(result, brief=brief, details=details)
    return update_lines(result, brief=brief)


def _raise_failures(result: CheckResult) -> None:
    """Say what could not be read, after all else was reported; the worst one ends the command.

    Raises:
        MemplanError: a model could not be read.
    """
    errors = sorted(result.errors.values(), key=lambda e: e.exit_code)
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
