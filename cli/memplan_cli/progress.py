"""A line on stderr while something takes longer than a second; none when not a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from memplan.units import format_bytes

_PATIENCE = 1.0
_INTERVAL = 0.2


@contextmanager
def planning_progress(quiet: bool) -> Iterator[Callable[[int], None] | None]:
    """Yields a callback for the planner's present peak in bytes, or None."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    started = time.monotonic()
    shown = [0.0]

    def update(peak: int) -> None:
        now = time.monotonic()
        if now - started < _PATIENCE or now - shown[0] < _INTERVAL:
            return
        shown[0] = now
        sys.stderr.write(
            f"\r\x1b[Kplanning: dynamic peak {format_bytes(peak)}, {now - started:.0f} s"
        )
        sys.stderr.flush()

    try:
        yield update
    finally:
        if shown[0]:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
