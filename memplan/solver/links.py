"""The problem's graph as Python lists; from what is kept to a sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from memplan.errors import UsageError
from memplan.solver.problem import NONE, Arrays, Ints, Problem


@dataclass(frozen=True, slots=True)
class Links:
    """``N`` nodes, ``T`` tensors; lists, because plain loops read them faster than arrays.

    Tensors share a *storage* by views; it is named by the tensor that it was allocated for, its
    root. ``fixed`` roots are never dropped: graph outputs, and what cannot be made again.
    """

    reads: list[list[int]]  # (N) tensors that are not resident, each once
    writes: list[list[int]]  # (N)
    maker: list[int]  # (T)
    root: list[int]  # (T)
    nbytes: list[int]  # (T) dynamic bytes: 0 for resident tensors
    cost: list[float]  # (N) seconds
    fixed: set[int]  # roots


def links_of(problem: Problem) -> Links:
    """The :class:`Links` of a problem."""
    arrays = problem.arrays
    resident, reads_flat = arrays.resident.tolist(), arrays.reads.tolist()
    starts, writes_flat = arrays.read_start.tolist(), arrays.writes.tolist()
    ends = arrays.write_start.tolist()
    nodes = range(len(arrays.cost))
    reads = [
        [t for t in dict.fromkeys(reads_flat[starts[i] : starts[i + 1]]) if not resident[t]]
        for i in nodes
    ]
    maker: list[int] = arrays.maker.tolist()
    root = _roots(arrays, problem.order)
    pinned = arrays.pinned.tolist()
    fixed = {root[t] for t in range(len(maker)) if pinned[t] or maker[t] == NONE}
    # Another form that takes no memory here, a copy on the host, is never dropped either.
    for form in problem.forms:
        made = writes_flat[ends[form.encode[-1]] : ends[form.encode[-1] + 1]]
        fixed |= {root[t] for t in made if arrays.nbytes[t] == 0}
    return Links(
        reads,
        [writes_flat[ends[i] : ends[i + 1]] for i in nodes],
        maker,
        root,
        np.where(arrays.resident, 0, arrays.nbytes).tolist(),
        arrays.cost.tolist(),
        fixed,
    )


def _roots(arrays: Arrays, order: Ints) -> list[int]:
    """For every tensor the one whose memory it is a view of, or itself."""
    root = list(range(len(arrays.nbytes)))
    for node in order.tolist():
        for w in range(int(arrays.write_start[node]), int(arrays.write_start[node + 1])):
            tensor, source = int(arrays.writes[w]), int(arrays.alias_of[w])
            # A view that is a graph output is a copy; one of a weight holds no dynamic memory.
            if source != NONE and not arrays.pinned[tensor]:
                root[tensor] = root[source]
    return root


def boundary(problem: Problem) -> int:
    """The position in ``problem.start`` at which the backward part begins.

    That is right behind the last forward node that is not a view: views stand before their first
    reader, which may be in the backward part.

    Raises:
        UsageError: the problem does not say which nodes are forward, or none is.
    """
    forward = problem.forward
    if forward is None or not forward[problem.order].any():
        raise UsageError(
            "no forward nodes are known, and this strategy decides where the forward part ends",
            "use a graph with a loss (--loss NAME), or the strategies auto or greedy",
        )
    arrays = problem.arrays
    last = NONE
    for node in problem.order.tolist():
        span = slice(arrays.write_start[node], arrays.write_start[node + 1])
        if forward[node] and not (arrays.alias_of[span] != NONE).all():
            last = node
    if last == NONE:  # views only: nothing to decide
        return len(problem.start)
    return int((problem.start == last).argmax()) + 1


@dataclass(frozen=True, slots=True)
class Cut:
    """``position`` in a sequence, in front of which only the roots in ``kept`` survive."""

    position: int
    kept: Set[int]


def sequence_keeping(
    links: Links,
    rank: Ints,
    order: Sequence[int],
    cuts: Sequence[Cut],
    stage: Mapping[int, int] | None = None,
) -> Ints:
    """``order`` where at every cut only what is kept survives, and fixed roots.

    What is dropped is recomputed right before its first reader behind the cut, together with
    whatever that needs, in the original order; from then on it stays until its last reader (as in
    Chen et al. 2016, section 3, and in PyTorch's partitioners).

    Args:
        links: the graph.
        rank: places in the original order, by node.
        order: nodes, each once.
        cuts: ascending.
        stage: nodes that wait until so many cuts are behind them; then they run when something
            reads what they make, or before the next cut.
    """
    return _Keeping(links, rank, order, stage or {}).walk(cuts)


class _Keeping:
    """State of one walk through an order."""

    def __init__(
        self, links: Links, rank: Ints, order: Sequence[int], stage: Mapping[int, int]
    ) -> None:
        self.links, self.rank, self.order, self.stage = links, rank, order, stage
        self.there = bytearray(len(links.maker))
        self.made: list[int] = []
        self.result: list[int] = []
        self.waiting: dict[int, None] = {}
        self.producer = {t: node for node in stage for t in links.writes[node]}

    def walk(self, cuts: Sequence[Cut]) -> Ints:
        begin = 0
        for passed, cut in enumerate([*cuts, None]):
            end = len(self.order) if cut is None else cut.position
            for node in self.order[begin:end]:
                if self.stage.get(node, 0) > passed:
                    self.waiting[node] = None
                elif node not in self.waiting:
                    self._run(node)
            for node in [n for n in self.waiting if self.stage[n] <= passed]:
                if node in self.waiting:
                    self._run(node)
            if cut is not None:
                self._drop(cut.kept)
            begin = end
        return np.asarray(self.result, dtype=np.int64)

    def _drop(self, kept: Set[int]) -> None:
        links = self.links
        for t in self.made:
            self.there[t] = links.root[t] in kept or links.root[t] in links.fixed
        self.made = [t for t in self.made if self.there[t]]

    def _run(self, node: int) -> None:
        """``node``, behind what it needs."""
        nodes = self._closure(node)
        for run in [*sorted(nodes, key=self.rank.__getitem__), node]:
            self.waiting.pop(run, None)
            self.result.append(run)
            for t in self.links.writes[run]:
                self.there[t] = 1
                self.made.append(t)

    def _closure(self, node: int) -> set[int]:
        """The nodes that make what ``node`` reads from what is there."""
        nodes: set[int] = set()
        missing = [t for t in self.links.reads[node] if not self.there[t]]
        while missing:
            tensor = missing.pop()
            maker = self.producer.get(tensor, NONE)
            if maker not in self.waiting:
                maker = self.links.maker[tensor]
            # What nobody can make again is never dropped; but it may not have been made yet.
            if maker != NONE and maker not in nodes:
                nodes.add(maker)
                missing.extend(t for t in self.links.reads[maker] if not self.there[t])
        return nodes
