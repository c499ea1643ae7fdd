"""``memplan check``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from memplan.errors import EXIT_FINDING, EXIT_OK, UsageError
from memplan_cli.options import (
    SESSIONS,
    bound,
    configuration_option,
    emit,
    output_options,
)

if TYPE_CHECKING:
    from memplan.check.run import CheckResult, Progress, UpdateResult

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
_SILENT_SECONDS = 1.0


@click.command("check")
@click.argument("models", nargs=-1, metavar="[MODEL]...", type=click.Path(path_type=Path))
@click.option(
    "--lock",
    type=click.Path(path_type=Path),
    default="memplan.lock",
    show_default=True,
    help="The lock file; models are named in it relative to its folder.",
)
@click.option("--update", is_flag=True, help="Record today's peaks (of MODELs, else of the lock).")
@click.option("--max-peak", metavar="SIZE", help="Also fail every model with a higher peak.")
@click.option(
    "--dim",
    "dims",
    multiple=True,
    metavar="NAME=SIZE",
    help="With --update: bind a symbolic dimension.",
)
@click.option(
    "--session",
    type=click.Choice(SESSIONS),
    default="tuned",
    help="With --update: how models will be loaded (else as locked).",
)
@click.option(
    "--provider",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    help="With --update: whose rules apply (else as locked).",
)
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="A file, or - for stdout.")
@output_options
@configuration_option
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
    form: str,
    output: Path | None,
    quiet: bool,
    verbose: int,
    color: str,
    force: bool,
) -> int:
    """Compare the peaks of models with a committed lock; exit 1 when one is above its limit.

    Without MODELs, all of the lock are compared. Models are analyzed as the lock recorded them;
    nothing is run, and nothing is written without --update.
    """
    from memplan.check.run import Request, run_check, run_update

    if output is not None and str(output) != "-":
        from memplan.proto.write import check_output

        check_output(output, force)
    cap = _cap(max_peak)
    request = Request(
        lock=lock,
        models=models,
        dims=bound(dims),
        session=_named(ctx, "session"),
        provider=_named(ctx, "provider"),
        new_session=session,
        new_provider=provider,
        max_peak_bytes=cap,
    )
    result: CheckResult | UpdateResult
    with _progress(quiet) as progress:
        result = run_update(request, progress) if update else run_check(request, progress)
    if form == "json":
        text = _json(result)
    else:
        lines = [_echoed(max_peak)] if max_peak is not None and not quiet else []
        lines += _lines(result, brief=quiet, details=verbose > 0)
        text = _painted(lines, _colored(color, output))
    emit(text, output, force)
    _raise_problems(result)
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
    from memplan.check.json_report import check_json, update_json
    from memplan.check.run import CheckResult

    return check_json(result) if isinstance(result, CheckResult) else update_json(result)


def _lines(result: CheckResult | UpdateResult, *, brief: bool, details: bool) -> list[str]:
    from memplan.check.run import CheckResult
    from memplan.check.text import check_lines, update_lines

    if isinstance(result, CheckResult):
        return check_lines(result, brief=brief, details=details)
    return update_lines(result, brief=brief)


def _raise_problems(result: CheckResult | UpdateResult) -> None:
    """Say what could not be read, after all else was reported; the worst one ends the command.

    Raises:
        MemplanError: there was a problem.
    """
    errors = sorted((problem.error for problem in result.problems), key=lambda e: e.exit_code)
    for error in errors[:-1]:
        click.echo(f"error: {error.message}", err=True)
        if error.hint:
            click.echo(f"hint: {error.hint}", err=True)
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


def _colored(color: str, output: Path | None) -> bool:
    if color != "auto":
        return color == "always"
    to_terminal = (output is None or str(output) == "-") and sys.stdout.isatty()
    return to_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@contextmanager
def _progress(quiet: bool) -> Iterator[Progress | None]:
    """A line on stderr once the analyses take longer than a second; None when not a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    started, shown = time.monotonic(), [False]

    def update(index: int, total: int, path: str) -> None:
        if time.monotonic() - started > _SILENT_SECONDS:
            shown[0] = True
            sys.stderr.write(f"\r\x1b[Kanalyzing {index + 1}/{total}: {path}")
            sys.stderr.flush()

    try:
        yield update
    finally:
        if shown[0]:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
