"""Tensors without bytes beside those of the graph: they give an order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from memplan.solver.problem import NONE, Arrays, Ints


def in_turn(arrays: Arrays, pairs: Sequence[tuple[int, int]]) -> Arrays:
    """The arrays with an order among some nodes: the first of each pair runs before the second.

    It makes a tensor without bytes that the second reads, one for all of its pairs. Such tensors
    stand behind all others.
    """
    if not pairs:
        return arrays
    firsts = sorted({first for first, _ in pairs})
    token = {node: len(arrays.nbytes) + k for k, node in enumerate(firsts)}
    after = np.asarray(firsts, dtype=np.int64)
    arrays = _with_outputs(arrays, after, np.asarray(list(token.values()), dtype=np.int64))
    by_reader = sorted(pairs, key=lambda pair: pair[1])
    readers = np.asarray([second for _, second in by_reader], dtype=np.int64)
    tokens = np.asarray([token[first] for first, _ in by_reader], dtype=np.int64)
    return arrays._replace(
        reads=np.insert(arrays.reads, arrays.read_start[readers + 1], tokens),
        read_start=_grown(arrays.read_start, readers),
    )


def _with_outputs(arrays: Arrays, nodes: Ints, tensors: Ints) -> Arrays:
    """The arrays in which every one of ``nodes`` also writes one of ``tensors``, new ones without
    bytes that stand behind all others."""
    many = len(nodes)
    write = arrays.write_start[nodes + 1]
    overwriter = arrays.overwriter
    if len(overwriter):
        overwriter = np.append(overwriter, np.full(many, NONE))
    return arrays._replace(
        writes=np.insert(arrays.writes, write, tensors),
        write_start=_grown(arrays.write_start, nodes),
        alias_of=np.insert(arrays.alias_of, write, NONE),
        inplace_start=np.insert(arrays.inplace_start, write, arrays.inplace_start[write]),
        droppable=np.insert(arrays.droppable, write, False),
        fleeting=np.insert(arrays.fleeting, write, False),
        nbytes=np.append(arrays.nbytes, np.zeros(many, np.int64)),
        alike=np.append(arrays.alike, arrays.alike.max(initial=0) + 1 + np.arange(many)),
        resident=np.append(arrays.resident, np.zeros(many, np.bool_)),
        pinned=np.append(arrays.pinned, np.zeros(many, np.bool_)),
        overwriter=overwriter,
    )


def _grown(starts: Ints, nodes: Ints) -> Ints:
    """Starts of runs after the runs of ``nodes`` grew by one entry for every time they stand
    there."""
    more = np.bincount(nodes, minlength=len(starts) - 1)
    return starts + np.concatenate(([0], np.cumsum(more)))
