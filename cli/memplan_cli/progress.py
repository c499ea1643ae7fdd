"""A line on stderr while something takes longer than a second; none when not a terminal."""

from __future__ import annotations

import math
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from memplan.solver.cache import before_compiling
from memplan.units import format_bytes, printable
from memplan_cli.shared_options import Report

if TYPE_CHECKING:
    from memplan.training.telling import StepReport

_PATIENCE_SECONDS = 1.0
_INTERVAL_SECONDS = 0.2  # at least, between two texts
_TICK_SECONDS = 0.2
_CLEAR = "\r\x1b[K"


@contextmanager
def announced_compilation() -> Iterator[None]:
    """Inside, stderr says so when the planner is to be compiled: once per version, but slow."""
    before_compiling.append(_announce)
    try:
        yield
    finally:
        before_compiling.clear()


def _announce() -> None:
    clear = _CLEAR if _is_watched() else ""
    click.echo(f"{clear}compiling the planner (once per version, about a minute)", err=True)


def _is_watched() -> bool:
    """Whether stderr is a terminal; where it was closed there is none."""
    stream: TextIO | None = sys.stderr
    return stream is not None and stream.isatty()


class _StatusLine:
    """A line that is written over and over, with the seconds so far, and removed at the end."""

    def __init__(self, text: str) -> None:
        self._text: Callable[[], str] = lambda: text
        self._started = time.monotonic()
        self._shown: float | None = None
        self._stream = sys.stderr  # code of the user's may replace it meanwhile
        self._writing = threading.Lock()

    def show(self, text: Callable[[], str]) -> None:
        """What ``text`` gives from now on, which may hold names from files."""
        self._text = text
        self.tick()

    def tick(self) -> None:
        """Write the text and the seconds so far, unless it is too early for it."""
        with self._writing:
            now = time.monotonic()
            last = self._started + _PATIENCE_SECONDS - _INTERVAL_SECONDS
            if now - (self._shown or last) < _INTERVAL_SECONDS:
                return
            self._shown = now
            seconds = f", {now - self._started:.0f} s"
            room = shutil.get_terminal_size().columns - len(seconds) - 1
            self._write(f"{_CLEAR}{printable(self._text())[:room]}{seconds}")

    def clear(self) -> None:
        """Remove the line, if there is one."""
        if self._shown is not None:
            self._write(_CLEAR)

    def _write(self, text: str) -> None:
        with suppress(ValueError, OSError):  # or close it
            self._stream.write(text)
            self._stream.flush()


@contextmanager
def _status_line(report: Report, text: str) -> Iterator[_StatusLine | None]:
    """A line that begins with ``text`` and goes on by itself.

    None where nobody would see it, and beside a log, which it would break.
    """
    if report.quiet or report.verbose or not _is_watched():
        yield None
        return
    line, done = _StatusLine(text), threading.Event()

    def go_on() -> None:
        while not done.wait(_TICK_SECONDS):
            line.tick()

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        line.tick()
        yield line
    finally:
        done.set()
        thread.join()
        line.clear()


@contextmanager
def waiting(report: Report, text: str) -> Iterator[Callable[[str], None]]:
    """Shows ``text`` and the seconds so far while the block runs, if it takes long; yields a
    function that adds what is being done now."""
    with _status_line(report, text) as status:

        def doing(what: str) -> None:
            if status is not None:
                status.show(lambda: f"{text}: {what}")

        yield doing


@contextmanager
def planning_progress(
    report: Report, model: Path, budget: str, seconds: float | None
) -> Iterator[Callable[[int, float], None] | None]:
    """Yields a callback for the planner's present peak in bytes and extra cost, or None.

    ``budget`` is what is aimed at, as it was given, ``seconds`` the time for it (None:
    as long as it takes).
    """
    told = nullcontext() if report.quiet else announced_compilation()
    with told, _status_line(report, f"reading and preparing {model.name}") as line:
        yield None if line is None else _planning(line, budget, seconds)


def _planning(
    line: _StatusLine, budget: str, seconds: float | None
) -> Callable[[int, float], None]:
    begun: list[float] = []
    limit = "" if seconds is None else f", at most {seconds:g} s"

    def show(peak: int, extra: float) -> None:
        begun.append(time.monotonic())
        over = begun[0] + (math.inf if seconds is None else seconds) + _PATIENCE_SECONDS
        found = f"peak {format_bytes(peak)}, {100 * extra:.2f}% extra time"
        line.show(
            lambda: (
                f"planning for {budget}{limit}: {found}"
                if time.monotonic() < over
                else f"checking the plan for {budget}: {found}"
            )
        )

    return show


@contextmanager
def models_progress(report: Report) -> Iterator[Callable[[int, int, str], None] | None]:
    """Yields a callback for a model's index, the number of models and its path, or None."""
    with _status_line(report, "reading the lock") as line:
        yield (
            None
            if line is None
            else lambda index, total, path: line.show(
                lambda: f"analyzing {index + 1}/{total}: {path}"
            )
        )


@contextmanager
def training_progress(
    report: Report,
) -> Iterator[Callable[[StepReport, int, int | None], None]]:
    """Yields a callback for a step's report, the number of steps and the peak in bytes."""
    with _status_line(report, "loading the step") as line:

        def show(step: StepReport, steps: int, peak: int | None) -> None:
            if line is None:
                return
            memory = "" if peak is None else f", peak {format_bytes(peak)}"
            text = f"step {step.step} of {steps}: loss {step.loss:.6g}{memory}, "
            text += f"{1000 * step.seconds:.1f} ms a step"
            line.show(lambda: text)

        yield show


@contextmanager
def steps_progress(report: Report) -> Iterator[Callable[[int, int, str], None] | None]:
    """Yields a callback for a step's place, the number of steps and what it does, or None."""
    with _status_line(report, "reading both models") as line:
        yield (
            None
            if line is None
            else lambda place, total, what: line.show(lambda: f"{what} ({place} of {total})")
        )


@contextmanager
def points_progress(report: Report) -> Iterator[Callable[[int, int, str], None] | None]:
    """Yields a callback for the number of finished points, of all so far, and what was done last,
    or None."""
    if not report.quiet:
        from memplan.solver.jit import is_cold

        if is_cold():  # the processes that compile it say nothing
            _announce()
    if report.quiet or report.verbose or not _is_watched():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[last]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("sweep", total=None, last="")
        yield lambda done, total, last: bar.update(
            task, completed=done, total=total, last=printable(last)
        )
