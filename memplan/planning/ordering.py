"""Compiled moves of single nodes and of windows: free memory by order alone.

A node may stand anywhere between the last value that it reads and the first reader of what it
makes; which values everyone reads stays the same. What a move would bring is estimated on the
profile; moves that seem to bring something, or cost nothing, are evaluated exactly.
"""

from __future__ import annotations

import numpy as np

from memplan.planning.beam import resequence
from memplan.planning.compiled import compiled, inner, leaf
from memplan.planning.evaluate import Profile, evaluate
from memplan.planning.index import Index, build_index, shift_excess
from memplan.planning.problem import NONE, Arrays, Flags, Ints
from memplan.planning.repair import excess_of

# How often a window is put in order instead of moving one node, its length and the beam's width.
_WINDOWS = 0.04
_SHORTEST, _LONGEST = 12, 120
_NARROWEST, _WIDEST = 4, 24


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
def window(profile: Profile, index: Index, position: int) -> tuple[int, int]:
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
    problem: Arrays, profile: Profile, index: Index, budget: int, position: int, target: int
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
def counted(profile: Profile, position: int, slot: int, storage: int) -> bool:
    """Whether an earlier slot of the same instance reads ``storage``."""
    for k in range(profile.slot_start[position], slot):
        v = profile.slot_value[k]
        if v >= 0 and profile.value_storage[v] == storage:
            return True
    return False


@leaf
def own_total(
    problem: Arrays, profile: Profile, index: Index, target: int, later: bool, kept: int
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
    pushed behind, what frees memory behind is pulled in front. Now and then a whole window there
    is put in a new order.
    """
    profile = evaluate(problem, sequence)
    index = build_index(problem, profile)
    excess = excess_of(profile, budget)
    has_eager = problem.eager.any()
    for _ in range(attempts):
        if excess <= 0:
            break
        if np.random.random() < _WINDOWS:
            order = shuffled_window(problem, profile, movable, budget)
        else:
            position = pick_position(profile, budget)
            if not movable[profile.sequence[position]]:
                continue
            target = pick_target(profile, index, position)
            if target == position:
                continue
            if move_change(problem, profile, index, budget, position, target) > 0:
                continue
            order = moved(profile.sequence, position, target)
        candidate = evaluate(problem, settle(problem, order) if has_eager else order)
        after = excess_of(candidate, budget)
        if after <= excess:
            profile, excess = candidate, after
            index = build_index(problem, profile)
    return profile.sequence, excess


@leaf
def pick_target(profile: Profile, index: Index, position: int) -> int:
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


@inner
def shuffled_window(problem: Arrays, profile: Profile, movable: Flags, budget: int) -> Ints:
    """The sequence with a window around a position over budget in a new order."""
    length = len(profile.sequence)
    over = np.flatnonzero(profile.total > budget)
    step = over[np.random.randint(len(over))]
    wide = _SHORTEST + np.random.randint(_LONGEST - _SHORTEST)
    lo = max(0, step - np.random.randint(wide))
    hi = min(length, lo + wide)
    width = _NARROWEST + np.random.randint(_WIDEST - _NARROWEST)
    return resequence(problem, profile.sequence, movable, budget, lo, hi, width, 0.3)


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
