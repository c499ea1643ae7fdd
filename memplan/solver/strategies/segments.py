"""Segments: the sublinear-memory schedule of Chen, Xu, Zhang and Guestrin.

'Training deep nets with sublinear memory cost' (arXiv 1604.06174, 2016), sections 3 and 4: the
forward part is cut into segments; only what crosses a cut is kept, and a segment is recomputed when
the backward part comes to it. The last segment is kept whole, as it is needed at once (PyTorch's
``checkpoint_sequential`` does the same).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from memplan.solver.problem import Ints
from memplan.solver.strategies.keepset import KeepSet, TrainingStep

# Counts that a sweep tries one by one; beyond them it goes on by a quarter at a time.
_EVERY_COUNT = 48


@dataclass(frozen=True, slots=True)
class Segments(KeepSet):
    """``count``: number of segments; 0 tries many counts and takes the cheapest that fits."""

    name: ClassVar[str] = "segments"
    summary: ClassVar[str] = "keep what crosses segment boundaries of the forward (Chen 2016)"
    source: ClassVar[str] = "Chen, Xu, Zhang, Guestrin: arXiv 1604.06174 (2016), sections 3 and 4"
    meanings: ClassVar[Mapping[str, str]] = {
        "count": "number of segments; 0 tries many",
    }
    count: int = 0

    def offers(self, step: TrainingStep, late: Callable[[], bool]) -> Iterator[Set[int]]:
        """What crosses the cuts of every count that is tried."""
        forward = _Forward(step)
        for count in [self.count] if self.count else _counts(len(step.stash)):
            yield forward.kept(forward.cuts(count))


def _counts(most: int) -> list[int]:
    counts, count = list(range(2, min(most, _EVERY_COUNT) + 1)), _EVERY_COUNT
    while count * 5 // 4 <= most:
        count = count * 5 // 4
        counts.append(count)
    return counts


class _Forward:
    """Where the forward part can be cut, and what crosses each cut.

    A cut at position p lies before the node at p. ``birth`` and ``last`` are the positions of the
    first write and the last forward read of every storage, by root.
    """

    def __init__(self, step: TrainingStep) -> None:
        links = step.links
        self.birth: dict[int, int] = {}
        self.last: dict[int, int] = {}
        for p, node in enumerate(step.sequence[: step.cut]):
            for t in links.reads[node]:
                self.last[links.root[t]] = p
            for t in links.writes[node]:
                self.birth.setdefault(links.root[t], p)
        change = np.zeros(step.cut + 2, np.int64)
        for root, p in self.birth.items():
            # Crosses the cuts p + 1 ... last.
            change[p + 1] += links.nbytes[root]
            change[max(self.last.get(root, p), p) + 1] -= links.nbytes[root]
        self.crossing: Ints = np.cumsum(change)[: step.cut]
        stashed = np.zeros(step.cut + 1, np.int64)
        for root in step.stash:
            stashed[self.birth[root] + 1] += links.nbytes[root]
        self.stashed: Ints = np.cumsum(stashed)[: step.cut]
        self.total = int(stashed.sum())

    def cuts(self, count: int) -> list[int]:
        """``count`` - 1 cuts, each where fewest bytes cross near its equal share of the stash.

        Near is half a segment to either side; of equal places the one nearest to the share counts.
        """
        result: list[int] = []
        for k in range(1, count):
            low, high = ((2 * k + d) * self.total // (2 * count) for d in (-1, 1))
            first = max(1, int(np.searchsorted(self.stashed, low)))
            behind = int(np.searchsorted(self.stashed, high))
            places = np.arange(first, max(behind, first + 1))
            places = places[places < len(self.stashed)]
            if len(places) == 0:
                continue
            distance = np.abs(self.stashed[places] - k * self.total // count)
            best = int(places[np.lexsort((distance, self.crossing[places]))[0]])
            if not result or best > result[-1]:
                result.append(best)
        return result

    def kept(self, cuts: list[int]) -> set[int]:
        """Roots that cross a cut, and all that are born in the last segment."""
        kept = set()
        for root, birth in self.birth.items():
            k = bisect_right(cuts, birth)
            if k == len(cuts) or cuts[k] <= self.last.get(root, birth):
                kept.add(root)
        return kept
