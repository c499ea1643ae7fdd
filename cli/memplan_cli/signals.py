"""What a signal does to a command that has child processes and temporary folders."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_BASE = 128


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM ends the command in order: children are stopped and folders removed on the way out.
    The exit code is that of a process that the signal ended, 143."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(_BASE + number)
