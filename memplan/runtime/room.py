"""How much memory there is, asked before much of it is taken.

An allocation that cannot succeed fails late, after minutes of filling, or does not fail at all: the
system ends the process. What is certain not to fit is refused by arithmetic.
"""

from __future__ import annotations

import resource
from pathlib import Path

from memplan.errors import RuntimeUnavailableError
from memplan.units import format_bytes

_GROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_SMALLER = "use a smaller batch or smaller sizes, or a machine with more memory"


def machine_memory() -> dict[str, int]:
    """``/proc/meminfo`` in bytes; empty where there is none."""
    try:
        with open("/proc/meminfo") as file:
            rows = [line.split() for line in file]
    except OSError:
        return {}
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) == 3}


def available_bytes() -> int:
    """Main memory that a process may still take; 0 where the system does not say."""
    return machine_memory().get("MemAvailable", 0)


def room_bytes() -> int | None:
    """The most that this process can ever hold: memory and swap, or less where it is limited. None
    where the system does not say."""
    memory = machine_memory()
    known = [memory["MemTotal"] + memory.get("SwapTotal", 0)] if "MemTotal" in memory else []
    for file in _GROUP_LIMITS:
        try:
            text = Path(file).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            known.append(int(text))
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        known.append(limit)
    return min(known, default=None)


def require_room(nbytes: int, what: str, hint: str = _SMALLER) -> None:
    """Refuse to hold what cannot be held.

    Args:
        nbytes: how much that is, at least.
        what: what it is, in the plural.
        hint: what to do.

    Raises:
        RuntimeUnavailableError: there is not so much memory.
    """
    room = room_bytes()
    if room is not None and nbytes > room:
        raise RuntimeUnavailableError(
            f"{what} take {format_bytes(nbytes)}, and there is {format_bytes(room)} of memory", hint
        )
