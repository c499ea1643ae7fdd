"""Tensors kept in another form, from which they are made again.

A recomputation makes again what is gone, from what is there; moves insert it late. Other forms (a
mask with eight elements to a byte, a copy in the host's memory) must be made early, where the
tensor still is: of these a move inserts the nodes at two places
(:mod:`memplan.solver.search.moves`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from memplan.solver.problem import NONE, Arrays, Form, Ints, Problem

_NOTHING = np.zeros(0, np.int64)


def with_forms(problem: Problem, sequence: Ints) -> Ints:
    """``sequence`` with every form that it lacks right behind what makes the tensor first."""
    there = set(sequence.tolist())
    behind: dict[int, list[int]] = {}
    for form in problem.forms:
        if there.isdisjoint(form.encode):
            behind.setdefault(first_maker(problem, form.tensor), []).extend(form.encode)
    if not behind:
        return sequence
    result: list[int] = []
    for node in sequence.tolist():
        result.append(node)
        result.extend(behind.pop(node, ()))
    return np.asarray(result, dtype=np.int64)


def without_forms(problem: Problem) -> Problem:
    """The problem in which a tensor is kept as it is or recomputed: nothing reads other forms."""
    arrays = problem.arrays
    if not problem.forms:
        return problem
    maker = arrays.maker.copy()
    for form in problem.forms:
        if maker[form.tensor] == form.decode:
            maker[form.tensor] = NONE
    arrays = arrays._replace(maker=maker, other_start=_NOTHING, others=_NOTHING)
    return replace(problem, arrays=arrays, forms=())


def with_makers(arrays: Arrays, forms: Sequence[Form]) -> Arrays:
    """The arrays in which what reads one of ``forms`` makes a tensor again, too."""
    if not forms:
        return arrays
    maker, others = arrays.maker.copy(), dict[int, list[int]]()
    encodes = np.full(len(arrays.cost), NONE, np.int64)
    for form in forms:
        encodes[list(form.encode)] = form.tensor
        for node in form.encode:
            maker[arrays.writes[arrays.write_start[node] : arrays.write_start[node + 1]]] = node
        if maker[form.tensor] == NONE:
            maker[form.tensor] = form.decode
        else:
            others.setdefault(form.tensor, []).append(form.decode)
    counts = [len(others.get(tensor, ())) for tensor in range(len(maker))] if others else []
    return arrays._replace(
        maker=maker,
        other_start=np.cumsum([0, *counts], dtype=np.int64) if others else _NOTHING,
        others=np.asarray([node for t in sorted(others) for node in others[t]], dtype=np.int64),
        encodes=encodes,
    )


def first_maker(problem: Problem, tensor: int) -> int:
    """The node of the order that makes a tensor."""
    arrays = problem.arrays
    slot = int(np.flatnonzero(arrays.writes == tensor)[0])
    return int(np.searchsorted(arrays.write_start, slot, side="right")) - 1
