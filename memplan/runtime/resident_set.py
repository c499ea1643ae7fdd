"""The resident set of this process: what it takes of the machine's memory, all told."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessGrowth:
    """How far the resident set grew. ``load_bytes``: from before a trainer was made until it stood,
    in ``load_seconds``; ``step_bytes``: from there to the highest point of the steps."""

    load_seconds: float
    load_bytes: int
    step_bytes: int

    def as_json(self) -> dict[str, object]:
        """All fields; ``growth`` in their names."""
        return {
            "load_seconds": self.load_seconds,
            "load_growth_bytes": self.load_bytes,
            "step_growth_bytes": self.step_bytes,
        }


class GrowthMeter:
    """Takes the marks of a :class:`ProcessGrowth`: made before the load."""

    def __init__(self) -> None:
        self._begin, self._started = resident_bytes(), time.perf_counter()
        self._loaded, self._seconds = self._begin, 0.0

    def loaded(self) -> None:
        """The load is done; what follows are steps."""
        self._seconds = time.perf_counter() - self._started
        self._loaded = reset_peak_rss()

    def growth(self) -> ProcessGrowth | None:
        """What was found; None where the system does not say."""
        if not self._begin:
            return None
        load, step = self._loaded - self._begin, peak_rss() - self._loaded
        return ProcessGrowth(self._seconds, max(load, 0), max(step, 0))


def reset_peak_rss() -> int:
    """Reset the peak of the resident set where the system allows; the present value in bytes."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return peak_rss()
    return resident_bytes()


def peak_rss() -> int:
    """The highest value since then, in bytes."""
    if high := resident_bytes("VmHWM"):
        return high
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident_bytes(field: str = "VmRSS") -> int:
    """The present value, or of another field of ``/proc/self/status`` (``VmHWM``: the highest); 0
    where there is none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), 0)
