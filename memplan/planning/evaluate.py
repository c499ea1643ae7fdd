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


class Storages(NamedTuple):
    """Which storage every value lives in; storages are numbered in order of birth."""

    of_value: Ints  # (V) NONE: resident, or dropped because nobody reads it
    lost: Ints  # (V) position at which an in-place output overwrites the value, or L
    birth: Ints  # (S)
    size: Ints  # (S)
    kind: Ints  # (S) 0: ordinary, 1: graph output, 2: fleeting
    last: Ints  # (S) last position that reads it, NONE if none


@inner
def inplace_source(
    problem: Arrays,
    output: int,
    node: int,
    slots: Ints,
    storage: Ints,
    pending: Ints,
    kind: Ints,
) -> int:
    """The value whose storage write slot ``output`` takes over, or NONE (rule 3)."""
    tensor = problem.writes[output]
    for c in range(problem.inplace_start[output], problem.inplace_start[output + 1]):
        source = problem.inplace_of[c]
        u = slots[find_slot(problem, node, source)]
        if u < 0 or storage[u] < 0:
            continue
        s = storage[u]
        if pending[s] == 1 and kind[s] != 1 and problem.alike[tensor] == problem.alike[source]:
            return int(u)
    return NONE


@inner
def assign_storages(
    problem: Arrays,
    sequence: Ints,
    slot_start: Ints,
    slot_value: Ints,
    value_start: Ints,
    value_reads: Ints,
) -> Storages:
    """Rules 1 to 3 and 5 of :mod:`memplan.simulate.allocation`, instance by instance."""
    length, values = len(sequence), len(value_reads)
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
        slots = slot_value[slot_start[p] : slot_start[p + 1]]
        for k in range(value_start[p + 1] - value_start[p]):
            v, w = value_start[p] + k, problem.write_start[i] + k
            t = problem.writes[w]
            pinned = problem.pinned[t] and not made[t]
            made[t] = True
            if value_reads[v] == 0 and problem.droppable[w] and not pinned:
                continue
            target, shared = NONE, False
            if not pinned and problem.alias_of[w] >= 0:
                shared = True
                u = slots[find_slot(problem, i, problem.alias_of[w])]
                if u >= 0:
                    target = storage[u]
            elif not pinned:
                u = inplace_source(problem, w, i, slots, storage, pending, kind)
                if u >= 0:
                    shared, target = True, storage[u]
                    ended[current[target]] = p
                    current[target] = v
            if not shared:
                target = count
                birth[target], size[target] = p, problem.nbytes[t]
                kind[target] = 1 if pinned else 2 if problem.fleeting[w] else 0
                current[target] = v
                count += 1
            storage[v] = target
            if target >= 0:
                epoch[v] = current[target]
                # One more for being produced, given back when the node is done.
                pending[target] += value_reads[v] + 1
        for v in slots:
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
    return Storages(
        storage, lost, birth[:count].copy(), size[:count].copy(), kind[:count].copy(),
        last[:count].copy(),
    )  # fmt: skip


@inner
def lifetimes(storages: Storages, length: int) -> tuple[Ints, Ints, Ints]:
    """Death and ``held`` of every storage, and the change of live bytes at every position."""
    count = len(storages.size)
    death = np.zeros(count, np.int64)
    held = np.zeros(count, np.int64)
    change = np.zeros(length + 1, np.int64)
    for s in range(count):
        if storages.kind[s] == 2 and storages.last[s] < 0:
            death[s] = storages.birth[s] + 1
        elif storages.kind[s] == 1 or storages.last[s] < 0:
            death[s] = length
            held[s] = 1
        else:
            death[s] = storages.last[s] + 1
        change[storages.birth[s]] += storages.size[s]
        change[death[s]] -= storages.size[s]
    return death, held, change


@compiled
def evaluate(problem: Arrays, sequence: Ints) -> Profile:
    """The :class:`Profile` of ``sequence`` under a session without buffer reuse.

    Mirrors :mod:`memplan.simulate.allocation` for sequences in which nodes may stand several times.
    """
    slot_start, slot_value, value_start, value_tensor, value_reads = resolve_reads(
        problem, sequence
    )
    storages = assign_storages(problem, sequence, slot_start, slot_value, value_start, value_reads)
    length = len(sequence)
    death, held, change = lifetimes(storages, length)
    dynamic = np.zeros(length, np.int64)
    total = np.zeros(length, np.int64)
    live = 0
    for p in range(length):
        node = sequence[p]
        live += change[p]
        dynamic[p] = live + problem.inside[node]
        total[p] = dynamic[p] + problem.workspace[node]
        for k in range(slot_start[p], slot_start[p + 1]):
            t = problem.reads[problem.read_start[node] + k - slot_start[p]]
            if slot_value[k] < 0 and not problem.resident[t]:
                total[p] = IMPOSSIBLE
    return Profile(
        sequence, slot_start, slot_value, value_start, value_tensor, storages.of_value,
        value_reads, storages.lost, storages.birth, death, storages.size, held, dynamic, total,
    )  # fmt: skip
