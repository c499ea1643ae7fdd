"""The certified structural floor: no order and no recomputation goes below it.

At the moment a node runs, three things are in memory in any schedule: its inputs, the outputs it
makes, and every graph output that it depends on (those are held to the end once made). At the end,
all graph outputs are. The largest of these sums is a lower bound on the dynamic peak.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memplan.planning.problem import NONE, Arrays, Ints


@dataclass(frozen=True, slots=True)
class Floor:
    """``nbytes`` without, ``with_workspace`` with kernel workspace (dynamic bytes).

    ``node`` pins the bound (NONE: the graph outputs held at the end); ``tensors`` are in memory
    then, by id.
    """

    nbytes: int
    with_workspace: int
    node: int
    tensors: tuple[int, ...]


def structural_floor(problem: Arrays, order: Ints) -> Floor:
    """The floor of a problem; ``order`` lists the nodes that every sequence must contain."""
    root = _view_roots(problem, order)
    outputs = np.flatnonzero(problem.pinned & ~problem.resident)
    best = Floor(int(problem.nbytes[outputs].sum()), int(problem.nbytes[outputs].sum()), NONE,
                 tuple(int(t) for t in outputs))  # fmt: skip
    plain = best.nbytes
    made: dict[int, int] = {}
    bit = {int(t): 1 << k for k, t in enumerate(outputs)}
    sizes = [int(problem.nbytes[t]) for t in outputs]
    for node in (int(n) for n in order):
        behind = 0
        for t in _reads(problem, node):
            behind |= made.get(t, 0) | bit.get(t, 0)
        tensors = _working_set(problem, node, root)
        for k, t in enumerate(outputs):
            if behind >> k & 1 and sizes[k]:
                tensors.add(int(t))
        nbytes = int(sum(int(problem.nbytes[t]) for t in tensors)) + int(problem.inside[node])
        plain = max(plain, nbytes)
        with_workspace = nbytes + int(problem.workspace[node])
        if with_workspace > best.with_workspace:
            best = Floor(nbytes, with_workspace, node, tuple(sorted(tensors)))
        for t in _writes(problem, node):
            made[t] = behind
    return Floor(plain, best.with_workspace, best.node, best.tensors)


def _reads(problem: Arrays, node: int) -> list[int]:
    return [int(t) for t in problem.reads[problem.read_start[node] : problem.read_start[node + 1]]]


def _writes(problem: Arrays, node: int) -> list[int]:
    start, end = problem.write_start[node], problem.write_start[node + 1]
    return [int(t) for t in problem.writes[start:end]]


def _view_roots(problem: Arrays, order: Ints) -> dict[int, int]:
    """For every tensor that is always a view: the tensor whose storage it shares."""
    root: dict[int, int] = {}
    for node in (int(n) for n in order):
        for w in range(problem.write_start[node], problem.write_start[node + 1]):
            source, tensor = int(problem.alias_of[w]), int(problem.writes[w])
            if source != NONE and not problem.pinned[tensor]:
                root[tensor] = root.get(source, source)
    return root


def _working_set(problem: Arrays, node: int, root: dict[int, int]) -> set[int]:
    """Inputs that are not resident, and outputs that cannot share memory with an input."""
    tensors = {root.get(t, t) for t in _reads(problem, node)}
    tensors = {t for t in tensors if not problem.resident[t]}
    for w in range(problem.write_start[node], problem.write_start[node + 1]):
        tensor = int(problem.writes[w])
        if problem.pinned[tensor]:
            tensors.add(tensor)
            continue
        if problem.alias_of[w] != NONE or problem.droppable[w]:
            continue
        candidates = problem.inplace_of[problem.inplace_start[w] : problem.inplace_start[w + 1]]
        if not any(problem.alike[c] == problem.alike[tensor] for c in candidates):
            tensors.add(tensor)
    return tensors
