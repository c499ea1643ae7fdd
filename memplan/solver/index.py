"""Look-up tables of an evaluated sequence, and the questions that moves ask of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from memplan.solver.evaluate import MemoryProfile
from memplan.solver.jit import inner, leaf
from memplan.solver.problem import NONE, Arrays, Ints

BLOCK = 64


class Index(NamedTuple):
    """Look-up tables of a profile, all CSR over storages or tensors, positions ascending."""

    read_start: Ints
    read_at: Ints  # positions that read a storage
    value_start: Ints
    values: Ints  # values of a storage
    first_read: Ints  # (V) first position that reads a value, or L
    last_read: Ints  # (V) last position that reads a value, NONE if none
    made_at: Ints  # (V) position
    tensor_start: Ints
    tensor_values: Ints  # values of a tensor in order
    born: Ints  # (L) bytes of storages born at each position
    block_min: Ints
    block_max: Ints


@leaf
def count_members(profile: MemoryProfile, index: Index) -> None:
    """Count values and reads per storage and values per tensor, one place behind their own."""
    for p in range(len(profile.sequence)):
        for v in range(profile.value_start[p], profile.value_start[p + 1]):
            index.made_at[v] = p
            index.tensor_start[profile.value_tensor[v] + 1] += 1
            if profile.value_storage[v] >= 0:
                index.value_start[profile.value_storage[v] + 1] += 1
        for k in range(profile.slot_start[p], profile.slot_start[p + 1]):
            v = profile.slot_value[k]
            if v >= 0:
                index.first_read[v] = min(index.first_read[v], p)
                index.last_read[v] = p
                if profile.value_storage[v] >= 0:
                    index.read_start[profile.value_storage[v] + 1] += 1


@leaf
def add_up(starts: Ints) -> None:
    """Turn counts into offsets."""
    for k in range(1, len(starts)):
        starts[k] += starts[k - 1]


@leaf
def shift_back(starts: Ints) -> None:
    """Undo that filling has moved every offset to the next one."""
    for k in range(len(starts) - 1, 0, -1):
        starts[k] = starts[k - 1]
    starts[0] = 0


@leaf
def list_members(profile: MemoryProfile, index: Index) -> None:
    """List the members at the offsets, which end up one place early (:func:`shift_back`)."""
    for p in range(len(profile.sequence)):
        for v in range(profile.value_start[p], profile.value_start[p + 1]):
            t, s = profile.value_tensor[v], profile.value_storage[v]
            index.tensor_values[index.tensor_start[t]] = v
            index.tensor_start[t] += 1
            if s >= 0:
                index.values[index.value_start[s]] = v
                index.value_start[s] += 1
        for k in range(profile.slot_start[p], profile.slot_start[p + 1]):
            v = profile.slot_value[k]
            if v >= 0 and profile.value_storage[v] >= 0:
                s = profile.value_storage[v]
                index.read_at[index.read_start[s]] = p
                index.read_start[s] += 1


@leaf
def summarize(profile: MemoryProfile, index: Index) -> None:
    """Fill what is born where, and the blocks."""
    for s in range(len(profile.size)):
        index.born[profile.birth[s]] += profile.size[s]
    for p in range(len(profile.total)):
        b = p // BLOCK
        if p % BLOCK == 0:
            index.block_min[b] = index.block_max[b] = profile.total[p]
        else:
            index.block_min[b] = min(index.block_min[b], profile.total[p])
            index.block_max[b] = max(index.block_max[b], profile.total[p])


@inner
def build_index(problem: Arrays, profile: MemoryProfile) -> Index:
    """The :class:`Index` of ``profile``."""
    length, storages = len(profile.sequence), len(profile.size)
    values, slots = len(profile.value_tensor), len(profile.slot_value)
    blocks = (length + BLOCK - 1) // BLOCK
    index = Index(
        np.zeros(storages + 1, np.int64),
        np.zeros(slots, np.int64),
        np.zeros(storages + 1, np.int64),
        np.zeros(values, np.int64),
        np.full(values, length, np.int64),
        np.full(values, NONE, np.int64),
        np.zeros(values, np.int64),
        np.zeros(len(problem.nbytes) + 1, np.int64),
        np.zeros(values, np.int64),
        np.zeros(length, np.int64),
        np.zeros(blocks, np.int64),
        np.zeros(blocks, np.int64),
    )
    count_members(profile, index)
    add_up(index.value_start)
    add_up(index.tensor_start)
    add_up(index.read_start)
    list_members(profile, index)
    shift_back(index.value_start)
    shift_back(index.tensor_start)
    shift_back(index.read_start)
    summarize(profile, index)
    return index


@leaf
def excess_change(part: Ints, budget: int, shift: int) -> int:
    """Change of the summed excess of the steps in ``part`` when each gains ``shift``."""
    change = 0
    for k in range(len(part)):  # integers and a slice from 0: the compiler makes vectors of it
        over = part[k] - budget
        change += max(over + shift, 0) - max(over, 0)
    return change


@leaf
def shift_excess(
    profile: MemoryProfile,
    index: Index,
    budget: int,
    first: int,
    last: int,
    shift: int,
    enough: float,
) -> float:
    """Change of the summed excess over ``budget`` when positions first..last gain ``shift``.

    Stops adding up when the change has passed ``enough``: near a full budget nearly every position
    counts, and most moves are ruled out by the first few.
    """
    change = 0
    if shift == 0:
        return 0.0
    p = first
    while p <= last and change <= enough:
        b = p // BLOCK
        end = min((b + 1) * BLOCK, last + 1)
        most, least = index.block_max[b] - budget, index.block_min[b] - budget
        if most > 0 or most + shift > 0:
            if least >= 0 and least + shift >= 0:
                change += (end - p) * shift
            else:
                change += excess_change(profile.total[p:end], budget, shift)
        p = end
    return float(change)


@leaf
def latest_before(index: Index, tensor: int, position: int) -> int:
    """The value of ``tensor`` that a read at ``position`` would see, or NONE."""
    found = NONE
    for k in range(index.tensor_start[tensor], index.tensor_start[tensor + 1]):
        if index.made_at[index.tensor_values[k]] >= position:
            break
        found = index.tensor_values[k]
    return found
