"""Tensors that nothing makes again, kept in a smaller form: sequences with and without it.

A recomputation makes again what is gone, from what is there; moves insert it late. A pack must
stand early, where the tensor still is, so no move finds it. So a search may be given sequences with
all of them; an unread pack takes no memory (``Arrays.fleeting``), and is taken out in the end.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from memplan.solver.problem import NONE, Ints, Problem


def with_packs(problem: Problem, sequence: Ints) -> Ints:
    """``sequence`` with every pack that it lacks right behind what makes the tensor first."""
    there = set(sequence.tolist())
    behind: dict[int, list[int]] = {}
    for pack in problem.packs:
        if there.isdisjoint(pack.nodes):
            behind.setdefault(first_maker(problem, pack.tensor), []).extend(pack.nodes)
    if not behind:
        return sequence
    result: list[int] = []
    for node in sequence.tolist():
        result.append(node)
        result.extend(behind.pop(node, ()))
    return np.asarray(result, dtype=np.int64)


def without_packs(problem: Problem) -> Problem:
    """The problem without packs, for planners that keep a tensor or make it again."""
    if not problem.packs:
        return problem
    maker = problem.arrays.maker.copy()
    maker[[pack.tensor for pack in problem.packs]] = NONE
    return replace(problem, arrays=problem.arrays._replace(maker=maker), packs=())


def always_packed(problem: Problem) -> Problem:
    """The problem with all packs in every sequence, for nothing: their seconds are put on the node
    that makes the tensor again. A search then sees a tensor that it may drop and make again.

    Who packs once and unpacks twice pays twice; :func:`stripped` gives what it really is.
    """
    if not problem.packs:
        return problem
    arrays = problem.arrays
    cost, protected = arrays.cost.copy(), problem.protected.copy()
    for pack in problem.packs:
        nodes = list(pack.nodes)
        cost[arrays.maker[pack.tensor]] += cost[nodes].sum()
        cost[nodes] = 0.0
        protected[nodes] = True
    return replace(
        problem,
        arrays=arrays._replace(cost=cost),
        start=with_packs(problem, problem.start),
        protected=protected,
    )


def stripped(problem: Problem, sequence: Ints) -> Ints:
    """``sequence`` without packs of which nothing is unpacked."""
    there = set(sequence.tolist())
    idle = [
        node
        for pack in problem.packs
        if int(problem.arrays.maker[pack.tensor]) not in there
        for node in pack.nodes
    ]
    return sequence[~np.isin(sequence, idle)] if idle else sequence


def first_maker(problem: Problem, tensor: int) -> int:
    """The node of the order that makes a tensor."""
    arrays = problem.arrays
    slot = int(np.flatnonzero(arrays.writes == tensor)[0])
    return int(np.searchsorted(arrays.write_start, slot, side="right")) - 1
