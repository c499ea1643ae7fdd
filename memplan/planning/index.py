"""Look-up tables of an evaluated sequence, and the questions that moves ask of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from memplan.planning.compiled import inner
from memplan.planning.evaluate import Profile
from memplan.planning.problem import NONE, Arrays, Ints

BLOCK = 64


class Index(NamedTuple):
    """Look-up tables of a profile, all CSR over storages or tensors, positions ascending."""

    read_start: Ints
    read_at: Ints  # positions that read a storage
    value_start: Ints
    values: Ints  # values of a storage
    last_read: Ints  # (V) last position that reads a value, NONE if none
    made_at: Ints  # (V) position
    tensor_start: Ints
    tensor_values: Ints  # values of a tensor in order
    born: Ints  # (L) bytes of storages born at each position
    block_min: Ints
    block_max: Ints


@inner
def build_index(problem: Arrays, profile: Profile, budget: int) -> Index:
    """The :class:`Index` of ``profile``."""
    length, storages = len(profile.sequence), len(profile.size)
    values = len(profile.value_tensor)
    made_at = np.zeros(values, np.int64)
    last_read = np.full(values, NONE, np.int64)
    value_start = np.zeros(storages + 1, np.int64)
    tensor_start = np.zeros(len(problem.nbytes) + 1, np.int64)
    read_start = np.zeros(storages + 1, np.int64)
    for p in range(length):
        for v in range(profile.value_start[p], profile.value_start[p + 1]):
            made_at[v] = p
            tensor_start[profile.value_tensor[v] + 1] += 1
            if profile.value_storage[v] >= 0:
                value_start[profile.value_storage[v] + 1] += 1
        for k in range(profile.slot_start[p], profile.slot_start[p + 1]):
            v = profile.slot_value[k]
            if v >= 0:
                last_read[v] = p
                if profile.value_storage[v] >= 0:
                    read_start[profile.value_storage[v] + 1] += 1
    value_start, tensor_start = np.cumsum(value_start), np.cumsum(tensor_start)
    read_start = np.cumsum(read_start)
    members = np.zeros(value_start[storages], np.int64)
    of_tensor = np.zeros(values, np.int64)
    read_at = np.zeros(read_start[storages], np.int64)
    at_value, at_tensor, at_read = value_start.copy(), tensor_start.copy(), read_start.copy()
    for p in range(length):
        for v in range(profile.value_start[p], profile.value_start[p + 1]):
            t, s = profile.value_tensor[v], profile.value_storage[v]
            of_tensor[at_tensor[t]] = v
            at_tensor[t] += 1
            if s >= 0:
                members[at_value[s]] = v
                at_value[s] += 1
        for k in range(profile.slot_start[p], profile.slot_start[p + 1]):
            v = profile.slot_value[k]
            if v >= 0 and profile.value_storage[v] >= 0:
                s = profile.value_storage[v]
                read_at[at_read[s]] = p
                at_read[s] += 1
    born = np.zeros(length, np.int64)
    for s in range(storages):
        born[profile.birth[s]] += profile.size[s]
    blocks = (length + BLOCK - 1) // BLOCK
    block_min = np.zeros(blocks, np.int64)
    block_max = np.zeros(blocks, np.int64)
    for b in range(blocks):
        part = profile.total[b * BLOCK : min((b + 1) * BLOCK, length)]
        block_min[b] = part.min()
        block_max[b] = part.max()
    return Index(
        read_start,
        read_at,
        value_start,
        members,
        last_read,
        made_at,
        tensor_start,
        of_tensor,
        born,
        block_min,
        block_max,
    )


@inner
def shift_excess(
    profile: Profile, index: Index, budget: int, first: int, last: int, shift: int
) -> float:
    """Change of the summed excess over ``budget`` when positions first..last gain ``shift``."""
    change = 0.0
    if shift == 0:
        return change
    p = first
    while p <= last:
        if p % BLOCK == 0 and p + BLOCK - 1 <= last:
            b = p // BLOCK
            if index.block_max[b] <= budget and index.block_max[b] + shift <= budget:
                p += BLOCK
                continue
            if index.block_min[b] >= budget and index.block_min[b] + shift >= budget:
                change += float(BLOCK) * shift
                p += BLOCK
                continue
        now = profile.total[p]
        change += max(0, now + shift - budget) - max(0, now - budget)
        p += 1
    return change


@inner
def latest_before(index: Index, tensor: int, position: int) -> int:
    """The value of ``tensor`` that a read at ``position`` would see, or NONE."""
    found = NONE
    for k in range(index.tensor_start[tensor], index.tensor_start[tensor + 1]):
        if index.made_at[index.tensor_values[k]] >= position:
            break
        found = index.tensor_values[k]
    return found
