"""Tensors kept in another form, from which they are made again: sequences with and without it.

A recomputation makes again what is gone, from what is there; moves insert it late. Other forms (a
mask with eight elements to a byte, a copy in the host's memory) must be made early, where the
tensor still is, so no move finds them. So a search is given sequences with all of them; a form that
nobody reads takes no memory (``Arrays.fleeting``), and is taken out in the end.
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
    """The problem in which a tensor is kept as it is or recomputed."""
    if not problem.forms:
        return problem
    return replace(problem, arrays=with_makers(problem.arrays, problem.forms, ()), forms=())


def without_last_kind(problem: Problem) -> Problem:
    """The problem without the kind of forms that stands last: a search among fewer, to begin with,
    finds more of what they bring."""
    kept = tuple(form for form in problem.forms if form.kind != problem.forms[-1].kind)
    return replace(problem, arrays=with_makers(problem.arrays, problem.forms, kept), forms=kept)


def with_makers(arrays: Arrays, before: Sequence[Form], forms: Sequence[Form]) -> Arrays:
    """The arrays in which what reads one of ``forms`` makes a tensor again, too, in place of what
    reads one of those ``before``."""
    if not before and not forms:
        return arrays
    maker, others = arrays.maker.copy(), dict[int, list[int]]()
    for form in before:
        if maker[form.tensor] == form.decode:
            maker[form.tensor] = NONE
    for form in forms:
        if maker[form.tensor] == NONE:
            maker[form.tensor] = form.decode
        else:
            others.setdefault(form.tensor, []).append(form.decode)
    counts = [len(others.get(tensor, ())) for tensor in range(len(maker))] if others else []
    return arrays._replace(
        maker=maker,
        other_start=np.cumsum([0, *counts], dtype=np.int64) if others else _NOTHING,
        others=np.asarray([node for t in sorted(others) for node in others[t]], dtype=np.int64),
    )


def with_all_encoded(problem: Problem) -> Problem:
    """The problem with all forms in every sequence, for nothing: their seconds are put on the node
    that makes the tensor again. A search then sees a tensor that it may drop and make again.

    Who makes a form once and reads it twice pays twice; :func:`stripped` gives what it really is.
    """
    if not problem.forms:
        return problem
    cost, protected = problem.arrays.cost.copy(), problem.protected.copy()
    for form in problem.forms:
        nodes = list(form.encode)
        cost[form.decode] += cost[nodes].sum()
        cost[nodes] = 0.0
        protected[nodes] = True
    return replace(
        problem,
        arrays=problem.arrays._replace(cost=cost),
        start=with_forms(problem, problem.start),
        protected=protected,
    )


def stripped(problem: Problem, sequence: Ints) -> Ints:
    """``sequence`` without forms that nothing is made from."""
    there = set(sequence.tolist())
    idle = [node for form in problem.forms if form.decode not in there for node in form.encode]
    return sequence[~np.isin(sequence, idle)] if idle else sequence


def first_maker(problem: Problem, tensor: int) -> int:
    """The node of the order that makes a tensor."""
    arrays = problem.arrays
    slot = int(np.flatnonzero(arrays.writes == tensor)[0])
    return int(np.searchsorted(arrays.write_start, slot, side="right")) - 1
