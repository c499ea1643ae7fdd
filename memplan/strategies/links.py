"""The problem's graph as Python lists, and where its forward part ends."""

from __future__ import annotations

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
            "use a graph with a loss (--loss NAME), or the strategies auto, greedy or dtr",
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
