"""What a signal does to a command that has child processes and temporary folders."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

TERMINATING = {signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}  # the terminal is gone
"""The signals that end a program besides Ctrl-C, and the word for it."""
received: list[signal.Signals] = []
"""Those that were to end this program, in the order in which they came."""
_BASE = 128
_AGAIN = 0.02
"""Seconds until a lost interrupt is raised again."""


class Noted(list[int]):
    """The signals that came while a command was to go on to a good end; empty: none."""

    def interrupt(self, hint: str) -> BaseException:
        """What to raise for the first of them; ``hint`` says what is left behind."""
        if self[0] != signal.SIGINT:
            with suppress(OSError):  # of a terminal that is gone
                sys.stderr.write(f"{TERMINATING[signal.Signals(self[0])]}: {hint}\n")
            return SystemExit(_BASE + self[0])
        error = KeyboardInterrupt()
        error.hint = hint  # type: ignore[attr-defined]
        return error


@contextmanager
def noted_signals() -> Iterator[Noted]:
    """Ctrl-C, SIGTERM and SIGHUP are noted once, for the block to come to a good end; a second one
    is as always. One that is ignored, as by ``nohup``, stays so."""
    noted = Noted()
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    numbers = (signal.SIGINT, *TERMINATING)
    handlers = {number: signal.getsignal(number) for number in numbers}
    before = {n: handler for n, handler in handlers.items() if handler is not signal.SIG_IGN}

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


def interrupt_on_signals() -> None:
    """Ctrl-C, SIGTERM and SIGHUP end the program alike: children and temporary folders go first.

    One that is ignored, as by ``nohup``, stays so.
    """
    for number in (signal.SIGINT, *TERMINATING):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    received.append(signal.Signals(number))
    threading.excepthook = _untold
    raise KeyboardInterrupt


def _untold(args: threading.ExceptHookArgs) -> None:
    """A library's thread that fails since its work was taken away is no news to anyone."""


def raise_lost_interrupts_again() -> None:
    """Have an interrupt that was lost raised once more.

    One that comes while a finalizer or a callback of compiled code runs cannot leave that: Python
    hands it to ``sys.unraisablehook`` and goes on as if nothing had been. numba's compiler calls
    back so often that without this a signal in its minute may end nothing.
    """
    others = sys.unraisablehook

    def told(unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN)  # not from here: it would be lost, too
        else:
            others(unraisable)

    sys.unraisablehook = told
    signal.signal(signal.SIGALRM, signal.default_int_handler)
