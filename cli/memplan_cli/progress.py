"""A line on stderr while something takes longer than a second; none when not a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from memplan.units import format_bytes

_PATIENCE = 1.0
_INTERVAL = 0.2


def announce_compilation() -> None:
    """Say on a terminal that the planner is about to be compiled: once per version, but slow."""
    if not sys.stderr.isatty():
        return
    from memplan.solver.jit import is_cold

    if is_cold():
        sys.stderr.write("compiling the planner (once per version, about 20 s)\n")
        sys.stderr.flush()


@contextmanager
def planning_progress(quiet: bool) -> Iterator[Callable[[int, float], None] | None]:
    """Yields a callback for the planner's present peak in bytes and extra cost, or None."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    announce_compilation()
    started = time.monotonic()
    shown = [0.0]

    def update(peak: int, extra: float) -> None:
        now = time.monotonic()
        if now - started < _PATIENCE or now - shown[0] < _INTERVAL:
            return
        shown[0] = now
        sys.stderr.write(
            f"\r\x1b[Kplanning: dynamic peak {format_bytes(peak)}, "
            f"{100 * extra:.2f}% extra time, {now - started:.0f} s"
        )
        sys.stderr.flush()

    try:
        yield update
    finally:
        if shown[0]:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
