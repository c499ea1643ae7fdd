"""All moves that lower the bytes in use at one position."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from memplan.planning.compiled import inner
from memplan.planning.evaluate import Profile
from memplan.planning.index import Index
from memplan.planning.moves import Scratch, score_move
from memplan.planning.problem import NONE, Arrays, Flags, Floats, Ints

# Moves that score less than this share of the best are not worth completing.
NEAR = 0.2


class Moves(NamedTuple):
    """Scored moves; the nodes of move ``k`` are ``nodes[start[k]:start[k + 1]]``."""

    storage: Ints
    at: Ints  # position before which the nodes are inserted
    score: Floats
    gain: Floats
    start: Ints
    nodes: Ints


@inner
def new_scratch(problem: Arrays, storages: int, longest: int) -> Scratch:
    """Work arrays for closures of up to ``longest`` nodes."""
    nodes, tensors = len(problem.cost), len(problem.nbytes)
    return Scratch(
        np.zeros(1, np.int64),
        np.zeros(nodes, np.int64),
        np.zeros(tensors, np.int64),
        np.zeros(storages, np.int64),
        np.zeros(tensors, np.int64),
        np.zeros(tensors, np.int64),
        np.zeros(longest, np.int64),
        np.zeros(longest, np.int64),
        np.zeros(4 * longest, np.int64),
        np.zeros(4 * longest, np.int64),
        np.zeros(4 * longest, np.int64),
        np.zeros(4 * longest, np.int64),
        np.zeros(4 * longest, np.float64),
        np.zeros(4 * longest + 2, np.int64),
        np.zeros(4 * longest + 2, np.int64),
        np.zeros(longest, np.int64),
    )


@inner
def gap_around(profile: Profile, index: Index, storage: int, step: int) -> tuple[int, int]:
    """The reads of ``storage`` next to ``step``: (last before, first after); NONE if none after.

    (NONE, NONE) when the storage is made or read at ``step`` itself.
    """
    if profile.birth[storage] == step:
        return NONE, NONE
    before = profile.birth[storage]
    for k in range(index.read_start[storage], index.read_start[storage + 1]):
        p = index.read_at[k]
        if p == step:
            return NONE, NONE
        if p > step:
            return before, p
        before = p
    return before, NONE


@inner
def enumerate_moves(
    problem: Arrays,
    profile: Profile,
    index: Index,
    movable: Flags,
    price: Floats,
    budget: int,
    step: int,
    depth: int,
    longest: int,
) -> Moves:
    """Moves whose gap contains ``step``, with their scores.

    Moves whose score cannot come near the best one's are left out.
    """
    storages = len(profile.size)
    scratch = new_scratch(problem, storages, longest)
    storage, at = np.zeros(storages, np.int64), np.zeros(storages, np.int64)
    score, gain = np.zeros(storages, np.float64), np.zeros(storages, np.float64)
    start = np.zeros(storages + 1, np.int64)
    nodes = np.zeros(1024, np.int64)
    count, leading = 0, 0.0
    for s in range(storages):
        if profile.birth[s] >= step or profile.death[s] <= step + 1:
            continue
        if profile.held[s] == 1 or profile.size[s] == 0:
            continue
        before, after = gap_around(profile, index, s, step)
        if after == NONE:
            continue
        value, benefit, used = score_move(
            problem,
            profile,
            index,
            scratch,
            movable,
            price,
            budget,
            s,
            before,
            after,
            depth,
            NEAR * leading,
        )
        if used == 0:
            continue
        while start[count] + used > len(nodes):
            larger = np.zeros(2 * len(nodes), np.int64)
            larger[: len(nodes)] = nodes
            nodes = larger
        nodes[start[count] : start[count] + used] = scratch.best[:used]
        start[count + 1] = start[count] + used
        leading = max(leading, value)
        storage[count], at[count], score[count], gain[count] = s, after, value, benefit
        count += 1
    return Moves(
        storage[:count], at[:count], score[:count], gain[:count], start[: count + 1], nodes
    )


@inner
def removal_change(
    problem: Arrays, profile: Profile, index: Index, budget: int, position: int
) -> float:
    """Estimated excess change when the recomputation at ``position`` is taken out.

    Readers fall back on the values before it; its inputs may die earlier.
    """
    node = profile.sequence[position]
    change = 0.0
    for v in range(profile.value_start[position], profile.value_start[position + 1]):
        if profile.value_reads[v] == 0:
            continue
        previous = NONE
        t = profile.value_tensor[v]
        for k in range(index.tensor_start[t], index.tensor_start[t + 1]):
            if index.made_at[index.tensor_values[k]] >= position:
                break
            previous = index.tensor_values[k]
        if previous == NONE:
            return 1.0
        s = profile.value_storage[previous]
        if s == NONE:
            continue
        start = min(profile.death[s], profile.value_lost[previous])
        if start < position:
            change += shift_between(profile, index, budget, start, position - 1, profile.size[s])
    for k in range(profile.slot_start[position], profile.slot_start[position + 1]):
        u = profile.slot_value[k]
        if u < 0:
            continue
        s = profile.value_storage[u]
        if s == NONE or profile.death[s] != position + 1:
            continue
        earlier = profile.birth[s]
        for r in range(index.read_start[s], index.read_start[s + 1]):
            if index.read_at[r] < position:
                earlier = index.read_at[r]
        change += shift_between(profile, index, budget, earlier + 1, position, -profile.size[s])
    return change if problem.cost[node] >= 0 else 1.0


@inner
def shift_between(
    profile: Profile, index: Index, budget: int, first: int, last: int, shift: int
) -> float:
    """Excess change of first..last by ``shift``, position by position."""
    change = 0.0
    for p in range(first, last + 1):
        now = profile.total[p]
        change += max(0, now + shift - budget) - max(0, now - budget)
    return change


@inner
def clone_positions(sequence: Ints, original: Flags) -> Ints:
    """Positions that recompute: the node has run before, or it is only a rebuild rule."""
    seen = np.zeros(len(original), np.bool_)
    found = np.zeros(len(sequence), np.int64)
    count = 0
    for p in range(len(sequence)):
        i = sequence[p]
        if seen[i] or not original[i]:
            found[count] = p
            count += 1
        seen[i] = True
    return found[:count].copy()


@inner
def unread_positions(profile: Profile, positions: Ints) -> Ints:
    """Those of ``positions`` none of whose outputs is read."""
    found = np.zeros(len(positions), np.int64)
    count = 0
    for p in positions:
        read = False
        for v in range(profile.value_start[p], profile.value_start[p + 1]):
            if profile.value_reads[v] > 0:
                read = True
                break
        if not read:
            found[count] = p
            count += 1
    return found[:count].copy()


@inner
def replaced_positions(profile: Profile, movable: Flags) -> Ints:
    """Instances that nobody reads any more because the node runs again later.

    First instances only of ``movable`` nodes: taking them out changes the order.
    """
    length = len(profile.sequence)
    first = np.full(len(movable), length, np.int64)
    for p in range(length - 1, -1, -1):
        first[profile.sequence[p]] = p
    again = np.zeros(len(movable), np.bool_)
    found = np.zeros(length, np.int64)
    count = 0
    for p in range(length - 1, -1, -1):
        node = profile.sequence[p]
        if again[node] and (movable[node] or first[node] != p):
            read = False
            for v in range(profile.value_start[p], profile.value_start[p + 1]):
                if profile.value_reads[v] > 0:
                    read = True
                    break
            if not read:
                found[count] = p
                count += 1
        again[node] = True
    return found[:count].copy()
