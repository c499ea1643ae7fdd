"""A line on stderr while something takes longer than a second; none when not a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from memplan.units import format_bytes, printable
from memplan_cli.options import Report

_PATIENCE_SECONDS = 1.0
_INTERVAL_SECONDS = 0.2
_CLEAR = "\r\x1b[K"


def announce_compilation() -> None:
    """Say on a terminal that the planner is about to be compiled: once per version, but slow."""
    if not sys.stderr.isatty():
        return
    from memplan.solver.jit import is_cold

    if is_cold():
        sys.stderr.write("compiling the planner (once per version, about 20 s)\n")
        sys.stderr.flush()


class _StatusLine:
    """A line that is written over and over, and removed at the end."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._shown: float | None = None

    def begin(self, text: str) -> None:
        """Write ``text`` at once: what takes long has just begun."""
        self._shown = time.monotonic()
        sys.stderr.write(f"{_CLEAR}{text}, after {self._shown - self._started:.0f} s")
        sys.stderr.flush()

    def show(self, text: str) -> None:
        """Write ``text`` and the seconds so far, unless it is too early for it."""
        now = time.monotonic()
        last = self._started + _PATIENCE_SECONDS - _INTERVAL_SECONDS
        if now - (self._shown or last) >= _INTERVAL_SECONDS:
            self._shown = now
            sys.stderr.write(f"{_CLEAR}{text}, {now - self._started:.0f} s")
            sys.stderr.flush()

    def clear(self) -> None:
        """Remove the line, if there is one."""
        if self._shown is not None:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()


@contextmanager
def _status_line(report: Report) -> Iterator[_StatusLine | None]:
    """None where nobody would see it, and beside a log, which it would break."""
    if report.quiet or report.verbose or not sys.stderr.isatty():
        yield None
        return
    line = _StatusLine()
    try:
        yield line
    finally:
        line.clear()


@contextmanager
def planning_progress(
    report: Report, budget: str, seconds: float | None
) -> Iterator[Callable[[int, float], None] | None]:
    """Yields a callback for the planner's present peak in bytes and extra cost, or None.

    ``budget`` is what is aimed at, as it was given, ``seconds`` the time for it (None:
    as long as it takes).
    """
    limit = "" if seconds is None else f", at most {seconds:g} s"
    if not report.quiet:
        announce_compilation()
    with _status_line(report) as line:
        yield (
            None
            if line is None
            else lambda peak, extra: line.show(
                f"planning for {budget}{limit}: peak {format_bytes(peak)}, "
                f"{100 * extra:.2f}% extra time"
            )
        )


@contextmanager
def frontier_progress(report: Report) -> Iterator[Callable[[int, int, int], None] | None]:
    """Yields a callback for a budget's index, their number and the budget in bytes, or None."""
    with _status_line(report) as line:
        yield (
            None
            if line is None
            else lambda index, total, budget: line.show(
                f"planning for budget {index + 1} of {total}: {format_bytes(budget)}"
            )
        )


@contextmanager
def waiting(report: Report, text: str) -> Iterator[None]:
    """Shows ``text`` and the seconds so far while the block runs, if it takes long."""
    with _status_line(report) as line:
        if line is None:
            yield
            return
        done = threading.Event()

        def show() -> None:
            while not done.wait(_INTERVAL_SECONDS):
                line.show(text)

        thread = threading.Thread(target=show, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


@contextmanager
def models_progress(report: Report) -> Iterator[Callable[[int, int, str], None] | None]:
    """Yields a callback for a model's index, the number of models and its path, or None."""
    with _status_line(report) as line:
        yield (
            None
            if line is None
            else lambda index, total, path: line.show(f"analyzing {index + 1}/{total}: {path}")
        )


@contextmanager
def steps_progress(report: Report) -> Iterator[Callable[[int, int, str], None] | None]:
    """Yields a callback for a step's place, the number of steps and what it does, or None."""
    with _status_line(report) as line:
        yield (
            None
            if line is None
            else lambda place, total, what: line.begin(f"{what} ({place} of {total})")
        )


@contextmanager
def points_progress(report: Report) -> Iterator[Callable[[int, int, str], None] | None]:
    """Yields a callback for the number of finished points, of all so far, and what was done last,
    or None."""
    if report.quiet or report.verbose or not sys.stderr.isatty():
        yield None
        return
    announce_compilation()
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
