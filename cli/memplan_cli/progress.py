"""What is being done, on stderr while it takes longer than a second; nothing when that is not a
terminal."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Timer
from typing import TextIO

import click

from memplan.solver.cache import before_compiling
from memplan.units import format_bytes, printable
from memplan_cli.options import Report

_PATIENCE_SECONDS = 1.0
Show = Callable[..., None]
"""Shows something else from now on: a text or what a function gives, which is asked again and
again; how many pieces of a ``total`` are ``completed``."""


@contextmanager
def announced_compilation() -> Iterator[None]:
    """Inside, stderr says so when the planner is to be compiled: once per version, but slow."""
    before_compiling.append(_announce)
    try:
        yield
    finally:
        before_compiling.clear()


def _announce() -> None:
    clear = "\r\x1b[K" if _is_watched() else ""
    click.echo(f"{clear}compiling the planner (once per version, about a minute)", err=True)


def _is_watched() -> bool:
    """Whether stderr is a terminal; where it was closed there is none."""
    stream: TextIO | None = sys.stderr
    return stream is not None and stream.isatty()


@contextmanager
def waiting(report: Report, text: str, *, counted: bool = False) -> Iterator[Show]:
    """Shows ``text`` and the time so far while the block runs, if it takes long; with ``counted`` a
    bar as well. Nothing is shown beside a log, which that would break."""
    if report.quiet or report.verbose or not _is_watched():
        yield lambda text, **counts: None
        return
    from rich import progress
    from rich.console import Console
    from rich.table import Column
    from rich.text import Text

    class Doing(progress.ProgressColumn):
        def render(self, task: progress.Task) -> Text:
            text = task.fields["text"]
            return Text(printable(text() if callable(text) else text))  # with names from files

    columns = [Doing(Column(no_wrap=True)), progress.TimeElapsedColumn()]
    if counted:
        columns = [progress.BarColumn(30), progress.MofNCompleteColumn(), *reversed(columns)]
    console = Console(stderr=True, no_color=True if report.color == "never" else None)
    bar = progress.Progress(
        *columns,
        console=console,
        transient=True,
        refresh_per_second=5,
        redirect_stdout=False,  # what would stand in its place may outlive it: numba's colorama
        redirect_stderr=False,
    )
    task = bar.add_task("", total=None, text=text)
    late = Timer(_PATIENCE_SECONDS, bar.start)
    late.daemon = True
    late.start()
    try:
        yield lambda text, **counts: bar.update(task, text=text, **counts)
    finally:
        late.cancel()
        late.join()
        bar.stop()


@contextmanager
def planning_progress(
    report: Report, model: Path, budget: str, seconds: float | None
) -> Iterator[Callable[[int, float], None]]:
    """Yields a callback for the planner's present peak in bytes and extra cost.

    ``budget`` is what is aimed at, as it was given, ``seconds`` the time for it (None:
    as long as it takes).
    """
    told = nullcontext() if report.quiet else announced_compilation()
    with told, waiting(report, f"reading and preparing {model.name}") as show:
        yield _planning(show, budget, seconds)


def _planning(show: Show, budget: str, seconds: float | None) -> Callable[[int, float], None]:
    begun: float | None = None
    limit = "" if seconds is None else f", at most {seconds:g} s"

    def found(peak: int, extra: float) -> None:
        nonlocal begun
        if begun is None:
            begun = time.monotonic()
        over = begun + (math.inf if seconds is None else seconds) + _PATIENCE_SECONDS
        plan = f"peak {format_bytes(peak)}, {100 * extra:.2f}% extra time"
        show(
            lambda: (
                f"planning for {budget}{limit}: {plan}"
                if time.monotonic() < over
                else f"checking the plan for {budget}: {plan}"
            )
        )

    return found


@contextmanager
def points_progress(report: Report) -> Iterator[Callable[[int, int, str], None]]:
    """Yields a callback for the number of finished points, of all so far, and what was done
    last."""
    if not report.quiet:
        from memplan.solver.jit import is_cold

        if is_cold():  # the processes that compile it say nothing
            _announce()
    with waiting(report, "", counted=True) as show:
        yield lambda done, total, last: show(last, completed=done, total=total)
