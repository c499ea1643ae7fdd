"""What tests ask of processes, and how they start some as a terminal does."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

HANG_SECONDS = 600
"""After so long a process hangs: many times what it takes on a machine that is busy otherwise."""


def as_from_a_terminal() -> None:
    """For ``preexec_fn``: no signal is ignored, as where ``nohup`` or a shell's ``&`` has
    started the tests."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether the condition comes to hold before one must think that it never will."""
    end = time.monotonic() + HANG_SECONDS
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def runs(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
