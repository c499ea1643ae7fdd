"""Tensors that nothing makes again, kept in a smaller form: sequences with and without it.

A recomputation makes again what is gone, from what is there; moves insert it late. A pack must
stand early, where the tensor still is, so no move finds it. Starts of a search may have all of
them: an unread pack takes no memory (``Arrays.fleeting``), and pruning takes it out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from memplan.solver.problem import NONE, Floats, Ints, Problem


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


def weights_of(problem: Problem) -> Floats:
    """Seconds by node, those of a pack put on the node that makes its tensor again.

    A search that has all packs in its starts would else take them for free.
    """
    cost, maker = problem.arrays.cost, problem.arrays.maker
    if not problem.packs:
        return cost
    weights = cost.copy()
    for pack in problem.packs:
        nodes = list(pack.nodes)
        weights[maker[pack.tensor]] += cost[nodes].sum()
        weights[nodes] = 0.0
    return weights


def first_maker(problem: Problem, tensor: int) -> int:
    """The node of the order that makes a tensor."""
    arrays = problem.arrays
    slot = int(np.flatnonzero(arrays.writes == tensor)[0])
    return int(np.searchsorted(arrays.write_start, slot, side="right")) - 1
