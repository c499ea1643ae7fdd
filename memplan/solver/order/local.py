"""Compiled moves of single nodes: free memory by order alone.

A node may stand anywhere between the last value that it reads and the first reader of what it
makes; which values everyone reads stays the same. What a move would bring is estimated on the
profile; moves that seem to bring something, or cost nothing, are evaluated exactly.
"""

from __future__ import annotations

import numpy as np

from memplan.solver.evaluate import MemoryProfile, evaluate, excess_of
from memplan.solver.index import Index, build_index, shift_excess
from memplan.solver.jit import compiled, inner, leaf
from memplan.solver.problem import NONE, Arrays, Flags, Ints

# Moves tried before one evaluation: one in so many positions, and at most so many.
_APART, _TOGETHER = 20, 200
# Draws of a storage that is live at a position.
_DRAWS = 30


@leaf
def neighbours(index: Index, tensor: int, value: int) -> tuple[int, int]:
    """The values of ``tensor`` before and after ``value``, or NONE."""
    first, end = index.tensor_start[tensor], index.tensor_start[tensor + 1]
    for k in range(first, end):
        if index.tensor_values[k] == value:
            before = index.tensor_values[k - 1] if k > first else NONE
            after = index.tensor_values[k + 1] if k + 1 < end else NONE
            return before, after
    return NONE, NONE


@leaf
def window(profile: MemoryProfile, index: Index, position: int) -> tuple[int, int]:
    """First and last position to which the instance at ``position`` may move."""
    first, last = 0 * position, len(profile.sequence) - 1
    for k in range(profile.slot_start[position], profile.slot_start[position + 1]):
        v = profile.slot_value[k]
        if v < 0:
            continue
        first = max(first, index.made_at[v] + 1)
        # A later value of what it reads must stay behind it.
        _, after = neighbours(index, profile.value_tensor[v], v)
        if after != NONE:
            last = min(last, index.made_at[after] - 1)
    for v in range(profile.value_start[position], profile.value_start[position + 1]):
        last = min(last, index.first_read[v] - 1)
        before, after = neighbours(index, profile.value_tensor[v], v)
        if after != NONE:
            last = min(last, index.made_at[after] - 1)
        if before != NONE:
            first = max(first, index.made_at[before] + 1, index.last_read[before] + 1)
    return first, last


@leaf
def other_read(index: Index, storage: int, position: int) -> int:
    """The last read of ``storage`` at another position than ``position``, or NONE."""
    for k in range(index.read_start[storage + 1] - 1, index.read_start[storage] - 1, -1):
        if index.read_at[k] != position:
            return int(index.read_at[k])
    return NONE


@leaf
def move_change(
    problem: Arrays, profile: MemoryProfile, index: Index, budget: int, position: int, target: int
) -> float:
    """Estimated change of the summed excess when ``position`` moves to ``target``.

    Exact unless the move changes which outputs are made in place, or shifts of several storages
    overlap in part.
    """
    node = profile.sequence[position]
    low, high = min(position, target), max(position, target)
    later = target > position
    change, kept = 0.0, 0 * position
    # Bytes made here are live over the way, or no more.
    whole = -index.born[position] if later else index.born[position]
    start, end = (low + 1, high) if later else (low, high - 1)
    for k in range(profile.slot_start[position], profile.slot_start[position + 1]):
        v = profile.slot_value[k]
        if v < 0 or profile.value_storage[v] < 0:
            continue
        s = profile.value_storage[v]
        if profile.held[s] == 1 or counted(profile, position, k, s):
            continue
        other = max(other_read(index, s, position), profile.birth[s])
        if later and other < target:
            # It must stay until the new place.
            kept += profile.size[s]
            if other <= position:
                whole += profile.size[s]
            else:
                change += shift_excess(
                    profile, index, budget, other + 1, end, profile.size[s], np.inf
                )
        elif not later and other < position:
            # It is not needed between the new place (or its other reader) and the old one.
            if other < target:
                whole -= profile.size[s]
            else:
                change += shift_excess(
                    profile, index, budget, other + 1, end, -profile.size[s], np.inf
                )
    change += shift_excess(profile, index, budget, start, end, whole, np.inf)
    here = own_total(problem, profile, index, target, later, kept)
    here += problem.inside[node] + problem.workspace[node]
    if not later:
        here += index.born[position]
    change += max(here - budget, 0) - max(profile.total[position] - budget, 0)
    return float(change)


@leaf
def counted(profile: MemoryProfile, position: int, slot: int, storage: int) -> bool:
    """Whether an earlier slot of the same instance reads ``storage``."""
    for k in range(profile.slot_start[position], slot):
        v = profile.slot_value[k]
        if v >= 0 and profile.value_storage[v] == storage:
            return True
    return False


@leaf
def own_total(
    problem: Arrays, profile: MemoryProfile, index: Index, target: int, later: bool, kept: int
) -> int:
    """Bytes live where the moved instance would run, without what it makes or takes itself.

    Behind ``target`` when it moves later (what dies there is gone, ``kept`` stays), else before.
    """
    live = profile.dynamic[target] - problem.inside[profile.sequence[target]]
    if not later:
        return int(live - index.born[target])
    for k in range(profile.slot_start[target], profile.slot_start[target + 1]):
        v = profile.slot_value[k]
        if v < 0 or profile.value_storage[v] < 0:
            continue
        s = profile.value_storage[v]
        if profile.death[s] == target + 1 and not counted(profile, target, k, s):
            live -= profile.size[s]
    return int(live + kept)


@leaf
def rotate(sequence: Ints, source: int, target: int) -> None:
    """Move the element at ``source`` to ``target``."""
    node = sequence[source]
    step = 1 if target > source else -1
    for p in range(source, target, step):
        sequence[p] = sequence[p + step]
    sequence[target] = node


@leaf
def anchor_nodes(problem: Arrays, sequence: Ints, there: Ints, key: Ints) -> None:
    """Fill sort keys that put eager nodes behind what they read (``there``: all -1)."""
    for p in range(len(sequence)):
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


@compiled
def settle(problem: Arrays, sequence: Ints) -> Ints:
    """``sequence`` as the runtime will run it: eager nodes right behind the last thing they read.

    Several that wait for the same node keep their order.
    """
    key = np.empty(len(sequence), np.int64)
    # 1 + position behind which a tensor is there; 0: from the start.
    anchor_nodes(problem, sequence, np.full(len(problem.nbytes), -1, np.int64), key)
    return sequence[np.argsort(key, kind="mergesort")]


@compiled
def reorder(
    problem: Arrays, sequence: Ints, movable: Flags, budget: int, attempts: int
) -> tuple[Ints, float]:
    """Moves that never raise the summed excess; the sequence and its excess.

    Half of the attempts start at positions over budget: what was made before and is read after is
    pushed behind, what frees memory behind is pulled in front. Moves that do not meet are made
    together, before one evaluation. Recomputations may move wherever they stand, first runs only
    of ``movable`` nodes.
    """
    profile = evaluate(problem, sequence)
    index = build_index(problem, profile)
    excess = excess_of(profile, budget)
    has_eager = problem.eager.any()
    together = max(1, min(_TOGETHER, len(sequence) // _APART))
    done = 0 * attempts
    while done < attempts and excess > 0:
        order = profile.sequence.copy()
        made = move_some(problem, profile, index, movable, budget, together, order)
        done += together
        if made == 0:
            continue
        candidate = evaluate(problem, settle(problem, order) if has_eager else order)
        after = excess_of(candidate, budget)
        if after <= excess:
            profile, excess = candidate, after
            index = build_index(problem, profile)
        elif together > 1:
            together //= 2  # moves got into each other's way
    return profile.sequence, excess


@leaf
def mark_fixed(sequence: Ints, movable: Flags, seen: Flags, fixed: Flags) -> None:
    """Mark first runs of nodes that may not move (``seen``: all false)."""
    for p in range(len(sequence)):
        fixed[p] = not (movable[sequence[p]] or seen[sequence[p]])
        seen[sequence[p]] = True


@inner
def move_some(
    problem: Arrays,
    profile: MemoryProfile,
    index: Index,
    movable: Flags,
    budget: int,
    attempts: int,
    order: Ints,
) -> int:
    """Make those of ``attempts`` random moves in ``order`` that seem to cost nothing and do not
    meet; how many there were."""
    over = np.flatnonzero(profile.total > budget)
    touched, fixed = np.zeros(len(order), np.bool_), np.zeros(len(order), np.bool_)
    mark_fixed(order, movable, np.zeros(len(movable), np.bool_), fixed)
    made = 0 * attempts
    for _ in range(attempts):
        position = pick_position(profile, index, over)
        if fixed[position]:
            continue
        target = pick_target(profile, index, position)
        low, high = min(position, target), max(position, target)
        if low == high or touched[low : high + 1].any():
            continue
        change = move_change(problem, profile, index, budget, position, target)
        # Where nothing changes, one move per round keeps the search drifting.
        if change > 0 or (change == 0 and made > 0):
            continue
        rotate(order, position, target)
        touched[low : high + 1] = True
        made += 1
    return made


@leaf
def pick_target(profile: MemoryProfile, index: Index, position: int) -> int:
    """A place within the node's window: an end of it, or any."""
    first, last = window(profile, index, position)
    if last <= first:
        return position
    draw = np.random.random()
    if draw < 0.3:
        return last
    if draw < 0.6:
        return first
    return int(first + np.random.randint(last - first + 1))


@leaf
def pick_position(profile: MemoryProfile, index: Index, over: Ints) -> int:
    """A node to move: any, or one that makes or reads last what is live at a position ``over``."""
    length = len(profile.sequence)
    if np.random.random() < 0.5:
        return int(np.random.randint(length))
    step = over[np.random.randint(len(over))]
    # A random storage that is live there; storages are numbered in order of birth.
    for _ in range(_DRAWS):
        s = np.random.randint(len(profile.birth))
        if profile.birth[s] <= step < profile.death[s]:
            if np.random.random() < 0.5 or profile.held[s] == 1:
                return int(profile.birth[s])
            return int(min(profile.death[s] - 1, length - 1))
    return int(step)
