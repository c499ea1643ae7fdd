"""Exact memory of a sequence, in time linear in its reads and writes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from memplan.planning.compiled import compiled, inner
from memplan.planning.problem import NONE, Arrays, Ints

IMPOSSIBLE = 1 << 60
"""Bytes charged at a position that reads a tensor which nothing has made."""


class Profile(NamedTuple):
    """A sequence of ``L`` instances, evaluated. ``V`` values, ``S`` storages.

    A *value* is one output of one instance. A *storage* is memory that values share; it is live
    in positions ``birth`` ≤ p < ``death``. ``total`` is dynamic bytes and workspace.
    """

    sequence: Ints  # (L) node ids
    slot_start: Ints  # (L+1) into slot_value
    slot_value: Ints  # value read by each slot, NONE for resident tensors
    value_start: Ints  # (L+1) values made at each position
    value_tensor: Ints  # (V)
    value_storage: Ints  # (V) NONE: resident, or dropped because nobody reads it
    value_reads: Ints  # (V)
    value_lost: Ints  # (V) position at which an in-place output overwrites it, or L
    birth: Ints  # (S)
    death: Ints  # (S)
    size: Ints  # (S)
    held: Ints  # (S) 1: a graph output or unread, held to the end
    dynamic: Ints  # (L)
    total: Ints  # (L)


@inner
def resolve_reads(problem: Arrays, sequence: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Which value every slot reads: the latest of its tensor."""
    length = len(sequence)
    slot_start = np.zeros(length + 1, np.int64)
    value_start = np.zeros(length + 1, np.int64)
    for p in range(length):
        i = sequence[p]
        slot_start[p + 1] = slot_start[p] + problem.read_start[i + 1] - problem.read_start[i]
        value_start[p + 1] = value_start[p] + problem.write_start[i + 1] - problem.write_start[i]
    slot_value = np.full(slot_start[length], NONE, np.int64)
    value_tensor = np.zeros(value_start[length], np.int64)
    value_reads = np.zeros(value_start[length], np.int64)
    latest = np.full(len(problem.nbytes), NONE, np.int64)
    for p in range(length):
        i = sequence[p]
        first = problem.read_start[i]
        for k in range(slot_start[p + 1] - slot_start[p]):
            v = latest[problem.reads[first + k]]
            slot_value[slot_start[p] + k] = v
            if v >= 0:
                value_reads[v] += 1
        first = problem.write_start[i]
        for k in range(value_start[p + 1] - value_start[p]):
            t = problem.writes[first + k]
            value_tensor[value_start[p] + k] = t
            latest[t] = value_start[p] + k
    return slot_start, slot_value, value_start, value_tensor, value_reads


@inner
def find_slot(problem: Arrays, node: int, tensor: int) -> int:
    """The first read slot of ``node`` that reads ``tensor``."""
    for k in range(problem.read_start[node], problem.read_start[node + 1]):
        if problem.reads[k] == tensor:
            return int(k - problem.read_start[node])
    return NONE


@compiled
def evaluate(problem: Arrays, sequence: Ints) -> Profile:
    """The :class:`Profile` of ``sequence`` under a session without buffer reuse.

    Mirrors rules 1, 2, 3 and 5 of :mod:`memplan.simulate.allocation`, for sequences in which nodes
    may stand several times.
    """
    slot_start, slot_value, value_start, value_tensor, value_reads = resolve_reads(
        problem, sequence
    )
    length = len(sequence)
    values = len(value_tensor)
    storage = np.full(values, NONE, np.int64)
    birth = np.zeros(values, np.int64)
    last = np.full(values, NONE, np.int64)
    size = np.zeros(values, np.int64)
    kind = np.zeros(values, np.int64)
    pending = np.zeros(values, np.int64)
    # Values of a storage between two in-place outputs share an epoch, named by its first value.
    epoch = np.zeros(values, np.int64)
    current = np.zeros(values, np.int64)
    ended = np.full(values, length, np.int64)
    made = np.zeros(len(problem.nbytes), np.bool_)
    count = 0
    for p in range(length):
        i = sequence[p]
        for k in range(value_start[p + 1] - value_start[p]):
            v = value_start[p] + k
            w = problem.write_start[i] + k
            t = problem.writes[w]
            first_time = not made[t]
            made[t] = True
            pinned = problem.pinned[t] and first_time
            if value_reads[v] == 0 and problem.droppable[w] and not pinned:
                continue
            target = NONE
            shared = False
            if not pinned:
                source = problem.alias_of[w]
                if source >= 0:
                    shared = True
                    u = slot_value[slot_start[p] + find_slot(problem, i, source)]
                    if u >= 0:
                        target = storage[u]
                else:
                    for c in range(problem.inplace_start[w], problem.inplace_start[w + 1]):
                        source = problem.inplace_of[c]
                        u = slot_value[slot_start[p] + find_slot(problem, i, source)]
                        if u < 0 or storage[u] < 0:
                            continue
                        s = storage[u]
                        alike = problem.alike[t] == problem.alike[source]
                        if pending[s] == 1 and kind[s] != 1 and alike:
                            shared = True
                            target = s
                            ended[current[s]] = p
                            current[s] = v
                            break
            if not shared:
                target = count
                birth[target] = p
                size[target] = problem.nbytes[t]
                kind[target] = 1 if pinned else 2 if problem.fleeting[w] else 0
                current[target] = v
                count += 1
            storage[v] = target
            if target >= 0:
                epoch[v] = current[target]
                # One more for being produced, given back when the node is done.
                pending[target] += value_reads[v] + 1
        for k in range(slot_start[p], slot_start[p + 1]):
            v = slot_value[k]
            if v >= 0 and storage[v] >= 0:
                pending[storage[v]] -= 1
                last[storage[v]] = p
        for v in range(value_start[p], value_start[p + 1]):
            if storage[v] >= 0:
                pending[storage[v]] -= 1
    lost = np.full(values, length, np.int64)
    for v in range(values):
        if storage[v] >= 0:
            lost[v] = ended[epoch[v]]
    death = np.zeros(count, np.int64)
    held = np.zeros(count, np.int64)
    change = np.zeros(length + 1, np.int64)
    for s in range(count):
        if kind[s] == 2 and last[s] < 0:
            death[s] = birth[s] + 1
        elif kind[s] == 1 or last[s] < 0:
            death[s] = length
            held[s] = 1
        else:
            death[s] = last[s] + 1
        change[birth[s]] += size[s]
        change[death[s]] -= size[s]
    dynamic = np.zeros(length, np.int64)
    total = np.zeros(length, np.int64)
    live = 0
    for p in range(length):
        live += change[p]
        dynamic[p] = live + problem.inside[sequence[p]]
        total[p] = dynamic[p] + problem.workspace[sequence[p]]
        for k in range(slot_start[p], slot_start[p + 1]):
            t = problem.reads[problem.read_start[sequence[p]] + k - slot_start[p]]
            if slot_value[k] < 0 and not problem.resident[t]:
                total[p] = IMPOSSIBLE
    return Profile(
        sequence,
        slot_start,
        slot_value,
        value_start,
        value_tensor,
        storage,
        value_reads,
        lost,
        birth[:count].copy(),
        death,
        size[:count].copy(),
        held,
        dynamic,
        total,
    )
