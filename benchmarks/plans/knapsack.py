"""Knapsack: which expensive results PyTorch's partitioner keeps under ``activation_memory_budget``.

``choose_saved_values_set`` in torch/_functorch/partitioners.py and ``dp_knapsack`` in
torch/_functorch/_activation_checkpointing/knapsack.py (PyTorch 2.x): of the nodes that the minimum
cut bans from recomputation, a 0/1 knapsack keeps those that save most time within a share of the
memory that the cut takes; the others may be recomputed, and the cut is made anew. It sees the
boundary between forward and backward only, never the peak.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from memplan.solver.problem import Floats
from memplan.solver.strategies.keepset import KeepSet, TrainingStep
from memplan.solver.strategies.mincut import StashGraph

# Memory is counted in this many parts of the whole (PyTorch's S).
_UNITS = 10_000
# Shares of memory that a sweep tries.
_SHARES = 40


@dataclass(frozen=True, slots=True)
class Knapsack(KeepSet):
    """``budget``: percent of the stash that may be kept; 0 tries 40 shares, takes the cheapest plan
    that really fits. ``cut``: 1 as PyTorch does; 0 for the plain knapsack, in which every stash is
    an item that is worth the time of its own node.
    """

    name: ClassVar[str] = "knapsack"
    summary: ClassVar[str] = "keep the stashes that save most time within a share (PyTorch)"
    words: ClassVar[Mapping[str, tuple[str, ...]]] = {"cut": ("0", "1")}
    source: ClassVar[str] = "PyTorch 2.x: activation_memory_budget of its partitioner"
    meanings: ClassVar[Mapping[str, str]] = {
        "budget": "percent of the stash that may be kept; 0 tries 40 shares",
        "cut": "1 packs what the minimum cut keeps, as PyTorch does; 0 every stash",
    }
    budget: int = 0
    cut: int = 1

    def offers(self, step: TrainingStep, late: Callable[[], bool]) -> Iterator[Set[int]]:
        """The best packing of every share that is tried."""
        choice = _Expensive(step, late) if self.cut else _Stashes(step)
        for share in [self.budget * _UNITS // 100] if self.budget else spread(_SHARES, _UNITS):
            kept = choice.kept(share)
            if kept is None:
                return
            yield kept


def spread(count: int, whole: int) -> list[int]:
    """``count`` + 1 shares from 0 to ``whole``, in an order that is spread out from the start."""
    order, stride = [0, count], count
    while stride > 1:
        stride = (stride + 1) // 2
        order.extend(k for k in range(0, count + 1, stride) if k not in order)
    return [k * whole // count for k in order]


class _Stashes:
    """Every stash is an item."""

    def __init__(self, step: TrainingStep) -> None:
        links = step.links
        self.items = [root for root in step.stash if root not in links.fixed]
        total = sum(links.nbytes[root] for root in self.items)
        self.packing = Packing(
            [links.cost[links.maker[root]] for root in self.items],
            [_parts(links.nbytes[root], total) for root in self.items],
        )

    def kept(self, share: int) -> frozenset[int] | None:
        """Roots to keep within ``share`` parts."""
        return frozenset(self.items[k] for k in self.packing.chosen(share))


class _Expensive:
    """The nodes that the minimum cut does not recompute are items; it is cut anew around them."""

    def __init__(self, step: TrainingStep, late: Callable[[], bool]) -> None:
        self.graph, self.late, links = StashGraph(step), late, step.links
        self.items = sorted(self.graph.expensive())
        kept = self.graph.cut(set(self.items), late)
        total = sum(links.nbytes[root] for root in kept or ())
        size = [sum(links.nbytes[t] for t in links.writes[node]) for node in self.items]
        self.packing = Packing(
            [links.cost[node] for node in self.items], [_parts(nbytes, total) for nbytes in size]
        )

    def kept(self, share: int) -> frozenset[int] | None:
        """Roots to keep within ``share`` parts, or None when it got late.

        The whole is what the first cut takes: then nothing else is asked.
        """
        chosen = range(len(self.items)) if share >= _UNITS else self.packing.chosen(share)
        banned = {self.items[k] for k in chosen}
        kept = self.graph.cut(banned, self.late)
        return None if kept is None else frozenset(kept)


def _parts(nbytes: int, total: int) -> int:
    return round(nbytes * _UNITS / total) if total else 0


class Packing:
    """A 0/1 knapsack solved for every room up to ``most`` at once, by dynamic programming."""

    def __init__(self, values: Sequence[float], weights: Sequence[int], most: int = _UNITS) -> None:
        self.weights = weights
        best: Floats = np.zeros(most + 1)
        self.taken: npt.NDArray[np.bool_] = np.zeros((len(values), most + 1), np.bool_)
        for k, (value, weight) in enumerate(zip(values, weights, strict=True)):
            if weight > most:
                continue
            with_it = best[: most + 1 - weight] + value
            better = with_it > best[weight:]
            self.taken[k, weight:] = better
            best[weight:] = np.where(better, with_it, best[weight:])

    def chosen(self, room: int) -> list[int]:
        """The items of the best packing that weighs at most ``room``."""
        result = []
        for k in range(len(self.weights) - 1, -1, -1):
            if self.taken[k, room]:
                result.append(k)
                room -= self.weights[k]
        return result[::-1]
