"""Signals that wait for the end of what must not be left half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = ("SIGINT", "SIGTERM", "SIGHUP")  # the last is not everywhere


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
        number: handler
        for name in _ENDING
        if (number := getattr(signal, name, None)) is not None
        and callable(handler := signal.getsignal(number))
    }
    came: list[tuple[int, FrameType | None]] = []
    for number in handlers:
        signal.signal(number, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for number, frame in came:
        handlers[number](number, frame)
