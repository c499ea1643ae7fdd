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

from memplan.solver.problem import NONE, Arrays, Flags, Form, Ints, Problem

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
    return _with_only(problem, ()) if problem.forms else problem


def without_last_kind(problem: Problem) -> Problem:
    """The problem without the kind of forms that stands last: a search among fewer, to begin with,
    finds more of what they bring."""
    kind = problem.forms[-1].kind
    return _with_only(problem, tuple(form for form in problem.forms if form.kind != kind))


def _with_only(problem: Problem, forms: tuple[Form, ...]) -> Problem:
    """The problem with the first of its forms, as it would have been without the nodes and tensors
    of the others, which stand behind all other nodes: a search that draws numbers then finds what
    it finds without them. Nodes keep their ids."""
    count = min(form.encode[0] for form in problem.forms if form not in forms)
    arrays = with_makers(problem.arrays, problem.forms, forms)
    labels = problem.labels
    kept = _tensors_of(arrays, count)
    if labels is not None:
        named = kept[: len(labels.names)]
        labels = replace(
            labels,
            names=tuple(name for name, stays in zip(labels.names, named, strict=True) if stays),
            marked=labels.marked[named],
            elements=labels.elements[named],
            unfit=labels.unfit[named],
            differentiated=labels.differentiated[:count],
        )
    number = np.cumsum(kept) - 1
    return replace(
        problem,
        arrays=_first_nodes(arrays, count, kept),
        protected=problem.protected[:count],
        movable=problem.movable[:count],
        forward=None if problem.forward is None else problem.forward[:count],
        intensive=None if problem.intensive is None else problem.intensive[:count],
        labels=labels,
        forms=tuple(replace(form, tensor=int(number[form.tensor])) for form in forms),
        known=tuple(each for each in problem.known if each.max(initial=0) < count),
    )


def _tensors_of(arrays: Arrays, count: int) -> Flags:
    """All tensors but those that only nodes behind the first ``count`` make, or read if they are
    there from the start."""
    read, write = arrays.read_start[count], arrays.write_start[count]
    touched = np.zeros(len(arrays.nbytes), np.bool_)
    later = touched.copy()
    touched[arrays.reads[:read]] = touched[arrays.writes[:write]] = True
    later[arrays.reads[read:]] = later[arrays.writes[write:]] = True
    return touched | ~later


def _first_nodes(arrays: Arrays, count: int, kept: Flags) -> Arrays:
    """The arrays of the first ``count`` nodes, with the tensors in ``kept``."""
    read, write = int(arrays.read_start[count]), int(arrays.write_start[count])
    share = int(arrays.inplace_start[write])
    number = np.append(np.cumsum(kept) - 1, NONE)  # the last one is that of NONE
    starts = arrays.other_start
    if len(starts):
        starts = np.append(starts[:-1][kept], starts[-1])
    return arrays._replace(
        read_start=arrays.read_start[: count + 1],
        reads=number[arrays.reads[:read]],
        write_start=arrays.write_start[: count + 1],
        writes=number[arrays.writes[:write]],
        alias_of=number[arrays.alias_of[:write]],
        inplace_start=arrays.inplace_start[: write + 1],
        inplace_of=number[arrays.inplace_of[:share]],
        droppable=arrays.droppable[:write],
        fleeting=arrays.fleeting[:write],
        nbytes=arrays.nbytes[kept],
        alike=arrays.alike[kept],
        resident=arrays.resident[kept],
        pinned=arrays.pinned[kept],
        eager=arrays.eager[:count],
        maker=arrays.maker[kept],
        rank=arrays.rank[:count],
        cost=arrays.cost[:count],
        workspace=arrays.workspace[:count],
        inside=arrays.inside[:count],
        overwriter=arrays.overwriter[kept] if len(arrays.overwriter) else arrays.overwriter,
        other_start=starts,
    )


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
