"""Compiled moves of single nodes: free memory by order alone.

A node may stand anywhere between the last value that it reads and the first reader of what it
makes; which values everyone reads stays the same. Every move is evaluated exactly.
"""

from __future__ import annotations

import numpy as np

from memplan.planning.compiled import compiled, inner
from memplan.planning.evaluate import Profile, evaluate
from memplan.planning.problem import Arrays, Flags, Ints
from memplan.planning.repair import excess_of


@inner
def window(problem: Arrays, profile: Profile, position: int) -> tuple[int, int]:
    """First and last position to which the instance at ``position`` may move."""
    sequence = profile.sequence
    length = len(sequence)
    node = sequence[position]
    first = 0
    for k in range(profile.slot_start[position], profile.slot_start[position + 1]):
        v = profile.slot_value[k]
        if v >= 0:
            # The maker's position, by bisection over value_start.
            made = np.searchsorted(profile.value_start, v, side="right") - 1
            first = max(first, made + 1)
    # A later value of a tensor that is read must stay behind the reader.
    last = length - 1
    for p in range(position + 1, length):
        other = sequence[p]
        stop = other == node
        if not stop:
            for k in range(profile.slot_start[p], profile.slot_start[p + 1]):
                v = profile.slot_value[k]
                if profile.value_start[position] <= v < profile.value_start[position + 1]:
                    stop = True
                    break
        if not stop:
            stop = overwrites(problem, other, node)
        if stop:
            last = p - 1
            break
    for p in range(position - 1, first - 1, -1):
        other = sequence[p]
        if other == node or overwrites(problem, node, other) or overwrites(problem, other, node):
            first = p + 1
            break
    return first, last


@inner
def overwrites(problem: Arrays, maker: int, reader: int) -> bool:
    """Whether ``maker`` makes a new value of a tensor that ``reader`` reads or makes."""
    for w in range(problem.write_start[maker], problem.write_start[maker + 1]):
        t = problem.writes[w]
        for r in range(problem.read_start[reader], problem.read_start[reader + 1]):
            if problem.reads[r] == t:
                return True
        for r in range(problem.write_start[reader], problem.write_start[reader + 1]):
            if problem.writes[r] == t:
                return True
    return False


@inner
def moved(sequence: Ints, source: int, target: int) -> Ints:
    """``sequence`` with the element at ``source`` moved to stand at ``target``."""
    result = sequence.copy()
    node = sequence[source]
    if target > source:
        result[source:target] = sequence[source + 1 : target + 1]
    else:
        result[target + 1 : source + 1] = sequence[target:source]
    result[target] = node
    return result


@compiled
def settle(problem: Arrays, sequence: Ints) -> Ints:
    """``sequence`` as the runtime will run it: eager nodes right behind the last thing they read.

    Several that wait for the same node keep their order.
    """
    length = len(sequence)
    # 1 + position behind which a tensor is there; 0: from the start.
    there = np.full(len(problem.nbytes), -1, np.int64)
    key = np.empty(length, np.int64)
    for p in range(length):
        node = sequence[p]
        anchor = p + 1
        if problem.eager[node]:
            anchor = 0
            for r in range(problem.read_start[node], problem.read_start[node + 1]):
                anchor = max(anchor, there[problem.reads[r]])
            key[p] = 2 * anchor + 1
        else:
            key[p] = 2 * anchor
        for w in range(problem.write_start[node], problem.write_start[node + 1]):
            if there[problem.writes[w]] < 0:
                there[problem.writes[w]] = anchor
    return sequence[np.argsort(key, kind="mergesort")]


@compiled
def reorder(
    problem: Arrays, sequence: Ints, movable: Flags, budget: int, attempts: int
) -> tuple[Ints, float]:
    """Random single moves that never raise the summed excess; the sequence and its excess.

    Half of the attempts start at positions over budget: what was made before and is read after is
    pushed behind, what frees memory behind is pulled in front.
    """
    profile = evaluate(problem, sequence)
    excess = excess_of(profile, budget)
    has_eager = problem.eager.any()
    for _ in range(attempts):
        if excess <= 0:
            break
        position = pick_position(profile, budget)
        if not movable[profile.sequence[position]]:
            continue
        first, last = window(problem, profile, position)
        if last <= first:
            continue
        draw = np.random.random()
        if draw < 0.3:
            target = last
        elif draw < 0.6:
            target = first
        else:
            target = first + np.random.randint(last - first + 1)
        if target == position:
            continue
        order = moved(profile.sequence, position, target)
        candidate = evaluate(problem, settle(problem, order) if has_eager else order)
        after = excess_of(candidate, budget)
        if after <= excess:
            profile, excess = candidate, after
    return profile.sequence, excess


@inner
def pick_position(profile: Profile, budget: int) -> int:
    """A node to move: any, or one next to a storage that is live at a position over budget."""
    length = len(profile.sequence)
    if np.random.random() < 0.5:
        return int(np.random.randint(length))
    over = np.flatnonzero(profile.total > budget)
    step = over[np.random.randint(len(over))]
    live = np.flatnonzero((profile.birth <= step) & (profile.death > step))
    if len(live) == 0:
        return int(np.random.randint(length))
    s = live[np.random.randint(len(live))]
    if np.random.random() < 0.5 or profile.held[s] == 1:
        return int(profile.birth[s])
    return int(min(profile.death[s] - 1, length - 1))
