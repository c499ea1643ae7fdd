"""What tests ask of processes that they did not start themselves."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether the condition holds within a minute."""
    for _ in range(6000):  # a minute
        if condition():
            break
        time.sleep(0.01)
    return condition()


def runs(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
