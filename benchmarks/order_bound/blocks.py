"""The time-aggregated program: a relaxation of rematerialization with few memory checkpoints.

Checkmate (Jain et al., "Checkmate: breaking the memory wall with optimal tensor
rematerialization", MLSys 2020, section 4) decides for every step and tensor whether it is kept
and whether it is made again: n² variables. Here the steps between two checkpoints form a *block*
in which recomputation is not timed, and memory is counted at the checkpoints only. Block k is what
happens after checkpoint k - 1 up to the moment at which the step of checkpoint k runs.

``keep[k, t]``: tensor t is there when the step of checkpoint k runs, and is read later.
``again[k, i]``: node i is recomputed in block k.

Any sequence that keeps the order of first computations yields such a solution of the same or less
cost, so the least cost bounds theirs. Three kinds of rows are added to plain aggregation:

*Interval rows.* In the relaxation to fractions a half-kept parent would serve one half of a
recomputation in every block. For blocks a..b together, ``any[a, b, i]`` (node i is recomputed in
them at all) obeys the same rules as a single block does. These rows make the relaxation
of many checkpoints as strong as that of every single one.

*Recomputation rows.* While a node is recomputed, its reads and writes are in memory next to all
that is kept throughout the block.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from memplan.solver.bound.milp import Program, Term
from memplan.solver.bound.relaxation import Relaxation
from memplan.solver.problem import NONE

# Absorbs the rounding of memory rows, in shares of the largest tensor.
_SLACK = 1e-8


class Blocks:
    """The program for one choice of checkpoints.

    ``checkpoints``: steps, ascending. ``crowded``: blocks with recomputation rows.
    """

    def __init__(
        self,
        relaxation: Relaxation,
        checkpoints: Sequence[int],
        crowded: Collection[int],
        unit: float,
    ) -> None:
        self.relaxation = relaxation
        self.checkpoints = list(checkpoints)
        self.last = len(self.checkpoints)  # number of the last block
        self.program = Program(unit)
        self.keep: list[dict[int, int]] = [{} for _ in self.checkpoints]
        self.again: list[dict[int, int]] = [{} for _ in range(self.last + 1)]
        self.any: dict[tuple[int, int], dict[int, int]] = {}
        self.scale = float(max(relaxation.size, default=0)) or 1.0
        self._find_blocks()
        self._columns()
        for k in range(self.last + 1):
            self._block(k)
        for k in range(self.last):
            self._memory(k)
        for k in sorted(crowded):
            if k < self.last:
                self._recomputation(k)
        for first in range(self.last - 1, 0, -1):
            self._interval(first, self.last, first)

    def _find_blocks(self) -> None:
        """The block of every step, and of the birth and the last use of every tensor."""
        relaxation = self.relaxation
        steps = np.arange(relaxation.steps + 1)
        self.block: list[int] = np.searchsorted(self.checkpoints, steps, side="left").tolist()
        self.born = [self.block[step] for step in relaxation.born]
        self.until = [NONE if step == NONE else self.block[step] for step in relaxation.until]
        # Made by a first computation: then it is there in its own block for free.
        self.given = [False] * len(relaxation.size)
        for i in relaxation.node_at:
            for t in relaxation.writes[i]:
                self.given[t] = True
        self.readers: list[list[int]] = [
            sorted({self.block[step] for step in found}) for found in relaxation.uses
        ]
        self.ready = [self._ready(i) for i in range(len(relaxation.step_of))]

    def _ready(self, node: int) -> int:
        """The first block in which recomputing ``node`` is looked at."""
        relaxation = self.relaxation
        if relaxation.step_of[node] == NONE:
            return max((self.born[u] for u in relaxation.again_reads[node]), default=0)
        first = min((self.born[t] for t in relaxation.writes[node]), default=0)
        return max(first, self.block[relaxation.step_of[node]]) + 1

    def _columns(self) -> None:
        relaxation = self.relaxation
        for i in range(len(relaxation.again)):
            if not relaxation.again[i]:
                continue
            wanted = max((self.until[t] for t in relaxation.writes[i]), default=NONE)
            for k in range(self.ready[i], wanted + 1):
                self.again[k][i] = self.program.column(relaxation.again_cost[i])
        for t, last in enumerate(self.until):
            for k in range(self.born[t], last):
                self.keep[k][t] = self.program.column()

    def _there(self, k: int, t: int, makers: dict[int, int]) -> list[Term]:
        """What brings tensor t into blocks that begin with k: kept so far, or made again."""
        terms = [(makers[j], 1.0) for j in self.relaxation.makers[t] if j in makers]
        if k > 0 and t in self.keep[k - 1]:
            terms.append((self.keep[k - 1][t], 1.0))
        return terms

    def _block(self, k: int) -> None:
        """Nothing is kept, read or used for a recomputation that is not there."""
        again = self.again[k]
        if k < self.last:
            for t, column in self.keep[k].items():
                if k > self.born[t] or not self.given[t]:
                    there = self._there(k, t, again)
                    self.program.at_most([(column, 1.0), *((j, -1.0) for j, _ in there)], 0.0)
        self._supply(k, k, again)

    def _supply(self, first: int, last: int, makers: dict[int, int]) -> None:
        """Reads within blocks first..last of what was there before, or was made in them."""
        for t, blocks in enumerate(self.readers):
            if self.born[t] < first and any(first <= k <= last for k in blocks):
                self.program.at_least(self._there(first, t, makers), 1.0)
        for i, column in makers.items():
            for u in self.relaxation.again_reads[i]:
                if self.born[u] < first or not self.given[u]:
                    there = self._there(first, u, makers)
                    self.program.at_most([(column, 1.0), *((j, -1.0) for j, _ in there)], 0.0)

    def _interval(self, first: int, last: int, split: int) -> None:
        """Rows for blocks first..last as one, made of first..split and split + 1..last."""
        if (first, last) in self.any:
            return
        left = self._indicator(first, split)
        right = self._indicator(split + 1, last)
        found: dict[int, int] = {}
        for i in [*left, *(i for i in right if i not in left)]:
            if self.ready[i] > first and self.relaxation.step_of[i] != NONE:
                continue
            parts = [side[i] for side in (left, right) if i in side]
            if len(parts) == 1:
                found[i] = parts[0]
                continue
            found[i] = self.program.column(whole=False)
            self.program.at_most([(found[i], 1.0), *((part, -1.0) for part in parts)], 0.0)
        self.any[first, last] = found
        self._supply(first, last, found)

    def _indicator(self, first: int, last: int) -> dict[int, int]:
        return self.again[first] if first == last else self.any[first, last]

    def _memory(self, k: int) -> None:
        """The budget at the step of checkpoint k."""
        relaxation, step = self.relaxation, self.checkpoints[k]
        node = relaxation.node_at[step]
        here = set(relaxation.reads[node])
        nbytes = int(relaxation.always[step]) + relaxation.room[node]
        nbytes += sum(relaxation.size[t] for t in here)
        terms: list[Term] = []
        for t in relaxation.own[node]:
            sources = relaxation.takes[node].get(t)
            if sources is None:
                nbytes += relaxation.size[t]
            elif all(c in self.keep[k] for c in sources):
                terms.append((self._all_kept(k, sources), float(relaxation.size[t])))
        here.update(relaxation.own[node])
        terms += [
            (column, float(relaxation.size[t]))
            for t, column in self.keep[k].items()
            if t not in here
        ]
        terms += [
            (column, float(relaxation.litter[i]))
            for columns in self.again[: k + 1]
            for i, column in columns.items()
            if relaxation.litter[i]
        ]
        self._within(terms, relaxation.budget - nbytes)

    def _all_kept(self, k: int, tensors: Sequence[int]) -> int:
        """A column that is 1 when all of ``tensors`` are kept at checkpoint k."""
        columns = [self.keep[k][t] for t in tensors]
        if len(columns) == 1:
            return columns[0]
        both = self.program.column(whole=False)
        terms = [(both, 1.0), *((column, -1.0) for column in columns)]
        self.program.at_least(terms, 1.0 - len(columns))
        return both

    def _within(self, terms: Sequence[Term], nbytes: int) -> None:
        """Σ terms ≤ nbytes, in units of the largest tensor."""
        scaled = [(column, value / self.scale) for column, value in terms]
        self.program.at_most(scaled, nbytes / self.scale + _SLACK)

    def _recomputation(self, k: int) -> None:
        """The budget while a node is recomputed in block k."""
        relaxation = self.relaxation
        throughout = self._throughout(k)
        total = self.program.column(upper=np.inf, whole=False)
        terms = [(total, 1.0)]
        terms += [(c, -relaxation.size[t] / self.scale) for t, c in throughout.items()]
        self.program.at_least(terms, 0.0)
        before = self.checkpoints[k - 1] if k else 0
        always = int(min(relaxation.always[before], relaxation.always[self.checkpoints[k]]))
        for i, column in self.again[k].items():
            first = relaxation.again_first[i]
            reads, own = relaxation.reads[first], relaxation.own[first]
            nbytes = relaxation.room[first] + sum(relaxation.size[t] for t in reads)
            nbytes += sum(relaxation.size[t] for t in own if t not in relaxation.takes[first])
            terms = [(total, self.scale), (column, float(nbytes))]
            for t in {*reads, *own}:
                if t in throughout:
                    terms.append((throughout[t], -float(relaxation.size[t])))
            self._within(terms, relaxation.budget - always)

    def _throughout(self, k: int) -> dict[int, int]:
        """Per tensor a column ≥ 1 if it is there throughout block k: kept or read at its end,
        and not made again in it.
        """
        relaxation, again = self.relaxation, self.again[k]
        at_end = set(relaxation.reads[relaxation.node_at[self.checkpoints[k]]])
        found = {}
        for t in sorted({*self.keep[k], *at_end}):
            if self.born[t] >= k or not relaxation.size[t]:
                continue
            made = [(again[j], 1.0) for j in relaxation.makers[t] if j in again]
            if t in at_end:
                found[t] = self.program.column(whole=False)
                self.program.at_least([(found[t], 1.0), *made], 1.0)
            elif made:
                found[t] = self.program.column(whole=False)
                self.program.at_least([(found[t], 1.0), (self.keep[k][t], -1.0), *made], 0.0)
            else:
                found[t] = self.keep[k][t]
        return found
