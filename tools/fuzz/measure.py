"""Seconds and memory of a piece of work, its child processes included (Linux)."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_RESET_PEAK = "5"  # what /proc/PID/clear_refs takes for: the peak begins anew (Linux 4.0)


@dataclass(slots=True)
class Spent:
    """What a piece of work took: wall clock, and the largest resident memory of one process."""

    seconds: float = 0.0
    peak_bytes: int = 0


@contextlib.contextmanager
def measured() -> Iterator[Spent]:
    """Fill in, at the end of the block, what it took."""
    spent, start = Spent(), time.monotonic()
    ended = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    for process in (os.getpid(), *_children()):
        with contextlib.suppress(OSError):
            Path(f"/proc/{process}/clear_refs").write_text(_RESET_PEAK)
    try:
        yield spent
    finally:
        spent.seconds = time.monotonic() - start
        peaks = [_peak_kib(process) for process in (os.getpid(), *_children())]
        grown = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        # Of children that have ended only the largest so far is known.
        spent.peak_bytes = 1024 * max(*peaks, grown if grown > ended else 0)


def _children() -> list[int]:
    found: list[int] = []
    for listed in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, listed.read_text().split())
    return found


def _peak_kib(process: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return 0
