"""Free stretches of memory, for placing buffers as ONNX Runtime's memory pattern does."""

from __future__ import annotations

from bisect import bisect_left, insort

from memplan.simulate.allocation import Allocation, Buffer

ALIGNMENT = 256
"""Bytes that every request is rounded up to (``kMinAllocationSize``, ``kAllocAlignment``)."""


def rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def by_step(allocation: Allocation) -> tuple[list[list[Buffer]], list[list[Buffer]]]:
    """Buffers by the step of their birth and by the step of their death."""
    steps = len(allocation.order) + 1
    births: list[list[Buffer]] = [[] for _ in range(steps)]
    deaths: list[list[Buffer]] = [[] for _ in range(steps)]
    for buffer in allocation.buffers:
        births[buffer.birth].append(buffer)
        deaths[buffer.death].append(buffer)
    return births, deaths


_LOWEST = -(1 << 80)  # below any start: where more is asked for than addresses, they are negative


class FreeSpace:
    """Free stretches of memory: smallest fit first, neighbours merged."""

    def __init__(self) -> None:
        self._sorted: list[tuple[int, int]] = []  # (size, start)
        self._size_at: dict[int, int] = {}
        self._start_of_end: dict[int, int] = {}

    def take(self, size: int) -> tuple[int, int] | None:
        """Remove the smallest stretch of at least ``size``, the lowest of equals."""
        position = bisect_left(self._sorted, (size, _LOWEST))
        if position == len(self._sorted):
            return None
        found, start = self._sorted[position]
        self._remove(start, found)
        return start, found

    def take_last(self, end: int) -> int:
        """Remove the stretch that ends at ``end``, if any; its start, else ``end``."""
        start = self._start_of_end.get(end, end)
        if start != end:
            self._remove(start, end - start)
        return start

    def give(self, start: int, size: int) -> None:
        """Add a stretch; it is merged with free neighbours."""
        if size == 0:
            return
        behind = self._size_at.get(start + size, 0)
        if behind:
            self._remove(start + size, behind)
        before = self._start_of_end.get(start, start)
        if before != start:
            self._remove(before, start - before)
        size += behind + start - before
        insort(self._sorted, (size, before))
        self._size_at[before] = size
        self._start_of_end[before + size] = before

    def _remove(self, start: int, size: int) -> None:
        del self._sorted[bisect_left(self._sorted, (size, start))]
        del self._size_at[start]
        del self._start_of_end[start + size]
