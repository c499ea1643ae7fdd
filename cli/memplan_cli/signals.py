"""What a signal does to a command that has child processes and temporary folders."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_BASE = 128


class Noted(list[int]):
    """The signals that came while a command was to go on to a good end; empty: none."""

    def interrupt(self, hint: str) -> BaseException:
        """What to raise for the first of them; ``hint`` says what is left behind."""
        if self[0] == signal.SIGTERM:
            sys.stderr.write(f"terminated: {hint}\n")
            return SystemExit(_BASE + signal.SIGTERM)
        error = KeyboardInterrupt()
        error.hint = hint  # type: ignore[attr-defined]
        return error


@contextmanager
def noted_signals() -> Iterator[Noted]:
    """Ctrl-C and SIGTERM are noted once, for the block to come to a good end; a second one is as
    always."""
    noted = Noted()
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, note)
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
