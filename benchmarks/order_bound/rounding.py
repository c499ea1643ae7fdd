"""From a solution of the time-aggregated program to a sequence, and where that needs too much.

The sequence is a real plan: evaluated exactly, it either keeps the budget (then the bound is
reached) or shows where the program must look closer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.order_bound.blocks import Blocks
from memplan.solver.evaluate import evaluate
from memplan.solver.problem import NONE, Floats, Ints, Problem


@dataclass(frozen=True, slots=True)
class RoundedPlan:
    """A sequence, per position the step of the order that it comes before (or is), its excess.

    ``excess`` is in bytes by position, ``cost`` the extra cost in seconds.
    """

    sequence: Ints
    step: Ints
    excess: Ints
    cost: float

    @property
    def fits(self) -> bool:
        """Whether the budget holds everywhere."""
        return not self.excess.any()


def round_solution(problem: Problem, blocks: Blocks, values: Floats) -> RoundedPlan:
    """The plan that a solution describes, recomputing as late as its block allows."""
    writer = _Writer(problem, blocks, values)
    writer.write()
    sequence = np.asarray(writer.sequence, dtype=np.int64)
    total = evaluate(problem.arrays, sequence).total
    return RoundedPlan(
        sequence,
        np.asarray(writer.step, dtype=np.int64),
        np.maximum(total - problem.budget, 0),
        float(problem.arrays.cost[sequence].sum()) - problem.base_cost,
    )


class _Solution:
    """The 0/1 choices of a solution: recomputations per block, tensors kept at checkpoints."""

    def __init__(self, blocks: Blocks, values: Floats) -> None:
        self.blocks, self.relaxation = blocks, blocks.relaxation
        self.again = [
            {i for i, column in columns.items() if values[column] > 0.5} for columns in blocks.again
        ]
        self.keep = [
            {t for t, column in columns.items() if values[column] > 0.5} for columns in blocks.keep
        ]
        self.wanted = [self._wanted(k) for k in range(blocks.last + 1)]
        for k in range(blocks.last):
            self._postpone(k)

    def _wanted(self, k: int) -> set[int]:
        """Tensors that are read in block k."""
        found = {t for t, readers in enumerate(self.blocks.readers) if k in readers}
        for i in self.again[k]:
            found.update(self.relaxation.again_reads[i])
        return found

    def _postpone(self, k: int) -> None:
        """Move recomputations whose result nobody reads in block k to the next block."""
        relaxation = self.relaxation
        moving = True
        while moving:
            moving = False
            for i in list(self.again[k]):
                made = relaxation.writes[i]
                reads = relaxation.again_reads[i]
                if i in self.again[k + 1] or not self.wanted[k].isdisjoint(made):
                    continue
                if all(self._there_next(k, u) for u in reads):
                    self.again[k].discard(i)
                    self.again[k + 1].add(i)
                    self.keep[k].difference_update(made)
                    self.wanted[k + 1].update(reads)
                    self.wanted[k] = self._wanted(k)
                    moving = True

    def _there_next(self, k: int, tensor: int) -> bool:
        makers = self.relaxation.makers[tensor]
        return tensor in self.keep[k] or any(j in self.again[k + 1] for j in makers)

    def deadlines(self, k: int) -> dict[int, int]:
        """Recomputations of block k → the step behind which they had better run.

        That is where the first thing they read is read for the last time, if what they make is
        smaller than what they would hold up.
        """
        relaxation, last_read = self.relaxation, dict[int, int]()
        begin, end = self._span(k)
        for step in range(begin, end + 1):
            for t in relaxation.reads[relaxation.node_at[step]]:
                last_read[t] = step
        kept: set[int] = self.keep[k] if k < self.blocks.last else set()
        found: dict[int, int] = {}

        def deadline(i: int) -> int:
            if i in found:
                return found[i]
            found[i] = end
            first, held_up = end, 0
            for u in relaxation.again_reads[i]:
                makers = [j for j in relaxation.makers[u] if j in self.again[k]]
                if makers:
                    first = min(first, deadline(makers[0]))
                elif u not in kept and last_read.get(u, begin - 1) < end:
                    first = min(first, last_read.get(u, begin - 1))
                    held_up += relaxation.size[u]
            small = sum(relaxation.size[t] for t in relaxation.writes[i]) < held_up
            found[i] = first if small or not held_up else end
            return found[i]

        for i in sorted(self.again[k]):
            deadline(i)
        return found

    def _span(self, k: int) -> tuple[int, int]:
        """First and last step of block k."""
        checkpoints, blocks = self.blocks.checkpoints, self.blocks
        begin = checkpoints[k - 1] + 1 if k else 0
        return begin, checkpoints[k] if k < blocks.last else self.relaxation.steps - 1


class _Writer:
    """Walks the order and puts recomputations in front of who wants them."""

    def __init__(self, problem: Problem, blocks: Blocks, values: Floats) -> None:
        self.blocks, self.relaxation = blocks, blocks.relaxation
        self.solution = _Solution(blocks, values)
        self.again = [set(found) for found in self.solution.again]
        arrays = problem.arrays
        self.reads = [
            arrays.reads[a:b].tolist()
            for a, b in zip(arrays.read_start[:-1], arrays.read_start[1:], strict=True)
        ]
        self.writes = [
            arrays.writes[a:b].tolist()
            for a, b in zip(arrays.write_start[:-1], arrays.write_start[1:], strict=True)
        ]
        self.view: dict[int, tuple[int, int]] = {}  # tensor → its only maker, source
        makers = np.bincount(arrays.writes, minlength=len(arrays.nbytes))
        for i, made in enumerate(self.writes):
            source = int(arrays.alias_of[arrays.write_start[i]]) if made else NONE
            if source != NONE and len(made) == makers[made[0]] == 1 and not arrays.pinned[made[0]]:
                self.view[made[0]] = (i, source)
        self.made = [0] * len(arrays.nbytes)  # 1 + position of the latest value
        self.source_made = [0] * len(arrays.nbytes)  # the same of what a view was made from
        self.sequence: list[int] = []
        self.step: list[int] = []

    def write(self) -> None:
        """Fill ``sequence`` and ``step``."""
        k = -1
        due: dict[int, list[int]] = {}
        for step, node in enumerate(self.relaxation.node_at):
            if self.blocks.block[step] != k:
                k = self.blocks.block[step]
                due = {}
                for i, after in self.solution.deadlines(k).items():
                    due.setdefault(after, []).append(i)
                self._run_all(due.pop(step - 1, []), k, step)
            for t in self.relaxation.reads[node]:
                self._make(t, k, step, node)
            if k < self.blocks.last and step == self.blocks.checkpoints[k]:
                self._run_all(due.pop(step, []), k, step)
            self._emit(node, step)
            if step in due and step + 1 < self.relaxation.steps:
                self._run_all(due.pop(step), k, step + 1)

    def _run_all(self, nodes: list[int], k: int, step: int) -> None:
        """Run those of ``nodes`` that have not run in block k, in the order of their results."""
        for i in sorted(nodes, key=lambda i: self.relaxation.born[self.relaxation.writes[i][0]]):
            self._run_again(i, k, step)

    def _make(self, tensor: int, k: int, step: int, reader: int) -> None:
        """Run whoever is to make ``tensor`` again in block k."""
        for i in self.relaxation.makers[tensor]:
            within = self.relaxation.chained.get(tensor) == reader
            if i in self.again[k]:
                self._run_again(i, k, step)
                return
            if within and k >= self.blocks.ready[reader]:
                self._run(i, k, step)
                return

    def _run_again(self, node: int, k: int, step: int) -> None:
        if node in self.again[k]:
            self.again[k].discard(node)
            self._run(node, k, step)

    def _run(self, node: int, k: int, step: int) -> None:
        for t in self.relaxation.reads[node]:
            self._make(t, k, step, node)
        self._emit(node, step)

    def _emit(self, node: int, step: int) -> None:
        """Append a node, and before it the views that it reads and that are out of date."""
        for t in self.reads[node]:
            self._refresh(t, step)
        self.sequence.append(node)
        self.step.append(step)
        for t in self.writes[node]:
            self.made[t] = len(self.sequence)
            if t in self.view:
                self.source_made[t] = self.made[self.view[t][1]]

    def _refresh(self, tensor: int, step: int) -> None:
        if tensor not in self.view:
            return
        node, source = self.view[tensor]
        self._refresh(source, step)
        if self.made[tensor] and self.source_made[tensor] != self.made[source]:
            self._emit(node, step)


def refinements(
    drafted: RoundedPlan, blocks: Blocks, crowded: set[int], most: int
) -> tuple[set[int], set[int]]:
    """Steps to add as checkpoints, and steps before which recomputations were too large.

    At most one place per block, worst first, ``most`` in all. A place in ``crowded`` that is a
    checkpoint already cannot be resolved further.
    """
    known, steps, places = set(blocks.checkpoints), set[int](), set[int]()
    is_first = np.zeros(len(drafted.sequence), np.bool_)
    is_first[np.searchsorted(drafted.step, np.unique(drafted.step), side="right") - 1] = True
    touched: set[int] = set()
    for position in np.argsort(-drafted.excess, kind="stable"):
        if not drafted.excess[position] or len(touched) >= most:
            break
        step = int(drafted.step[position])
        if blocks.block[step] in touched:
            continue
        wanted = {step} if is_first[position] else {step, step - 1}
        fresh = {s for s in wanted - known if s >= 0}
        if not is_first[position] and step not in crowded:
            places.add(step)
        elif not fresh:
            continue
        steps |= fresh
        touched.add(blocks.block[step])
    return steps, places
