"""Signals that wait for the end of what must not be left half done, and their names."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_NAMES = {each.value: each.name for each in signal.Signals}
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def signal_name(number: int) -> str:
    """``SIGSEGV``; real-time signals have numbers alone."""
    return _NAMES.get(number, f"signal {number}")


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Let handlers of signals that end a program run when the block has ended.

    Handlers are Python's, so they would not run before compiled code comes back either, but then in
    the midst of what is to be done next.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {
        number: handler for number in _ENDING if callable(handler := signal.getsignal(number))
    }
    came: list[tuple[signal.Signals, FrameType | None]] = []
    for each in handlers:
        signal.signal(each, lambda number, frame: came.append((signal.Signals(number), frame)))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for number, frame in came:
        handlers[number](number, frame)
