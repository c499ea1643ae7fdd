"""What a beam search must know of a part of a sequence: who waits for whom, and how memory grows.

Which value every instance reads stays as it is; the order may change within that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memplan.solver.evaluate import MemoryProfile, find_slot
from memplan.solver.index import add_up, shift_back
from memplan.solver.jit import inner, leaf
from memplan.solver.problem import NONE, Arrays, Flags, Ints

Shorts = npt.NDArray[np.int16]


class Window(NamedTuple):
    """``M`` instances at positions lo..hi-1, and the ``G`` groups that live while they run.

    A *group* is a value with its views. ``own`` are bytes at the instance's own step only.
    """

    after_start: Ints  # (M+1) which instances wait for each one
    after: Ints
    waits: Shorts  # (M) for how many
    read_start: Ints  # (M+1) groups read by each instance, one entry per slot
    read_group: Ints
    made_start: Ints  # (M+1) groups made by each instance
    made_group: Ints
    reads_left: Shorts  # (G) slots of the window that read the group
    size: Ints  # (G)
    dies: Flags  # (G) nobody behind the window needs it
    own: Ints  # (M)
    inplace_start: Ints  # (M+1) pairs: made group, read group whose memory it may take over
    inplace_made: Ints
    inplace_read: Ints
    live: Ints  # (1) bytes live when the window begins


@leaf
def group_values(
    problem: Arrays, profile: MemoryProfile, group: Ints, size: Ints, held: Flags, own: Ints
) -> int:
    """Number the groups; views belong to what they show. Returns how many there are.

    ``own``: bytes of unread outputs at every position.
    """
    count = 0 * len(group)
    for p in range(len(profile.sequence)):
        node = profile.sequence[p]
        for k in range(profile.value_start[p + 1] - profile.value_start[p]):
            v, w = profile.value_start[p] + k, problem.write_start[node] + k
            s = profile.value_storage[v]
            group[v] = NONE
            if s == NONE:
                continue
            pinned = profile.held[s] == 1 and profile.birth[s] == p
            if problem.alias_of[w] != NONE and not pinned:
                u = profile.slot_value[
                    profile.slot_start[p] + find_slot(problem, node, problem.alias_of[w])
                ]
                group[v] = group[u] if u >= 0 else NONE
                continue
            if profile.value_reads[v] == 0 and problem.fleeting[w]:
                own[p] += problem.nbytes[problem.writes[w]]
                continue
            group[v] = count
            size[count] = problem.nbytes[problem.writes[w]]
            held[count] = pinned or profile.value_reads[v] == 0
            count += 1
    return count


@leaf
def live_before(
    profile: MemoryProfile, group: Ints, size: Ints, held: Flags, last: Ints, lo: int
) -> int:
    """Bytes of the groups that are made before ``lo`` and read (or held) from there on."""
    live = 0 * lo
    for p in range(len(profile.sequence)):
        for k in range(profile.slot_start[p], profile.slot_start[p + 1]):
            v = profile.slot_value[k]
            if v >= 0 and group[v] >= 0:
                last[group[v]] = p
    seen = NONE
    for v in range(profile.value_start[lo]):
        # Groups are numbered as they are made: a view never shows a new number.
        if group[v] > seen:
            seen = group[v]
            if held[seen] or last[seen] >= lo:
                live += size[seen]
    return live


@leaf
def link(starts: Ints, items: Ints, first: int, item: int, fill: bool) -> None:
    """Count an item of ``first``, or write it to its place."""
    if fill:
        items[starts[first]] = item
        starts[first] += 1
    else:
        starts[first + 1] += 1


@leaf
def link_window(
    problem: Arrays,
    profile: MemoryProfile,
    movable: Flags,
    made_at: Ints,
    lo: int,
    hi: int,
    following: Ints,
    starts: Ints,
    items: Ints,
    fill: bool,
) -> None:
    """The order that must hold within the window: count it, or write it.

    What makes a value runs before what reads it; what reads a value (or makes one that is not
    read) runs before the next value of the same tensor. Nodes that may not move keep their order.
    ``following``: (V) the next value of the same tensor, or NONE.
    """
    stuck = NONE
    for p in range(lo, hi):
        node = profile.sequence[p]
        for k in range(profile.slot_start[p], profile.slot_start[p + 1]):
            v = profile.slot_value[k]
            if v < 0:
                continue
            if made_at[v] >= lo:
                link(starts, items, made_at[v] - lo, p - lo, fill)
            if following[v] != NONE and p < made_at[following[v]] < hi:
                link(starts, items, p - lo, made_at[following[v]] - lo, fill)
        for v in range(profile.value_start[p], profile.value_start[p + 1]):
            if following[v] != NONE and made_at[following[v]] < hi:
                link(starts, items, p - lo, made_at[following[v]] - lo, fill)
        if not movable[node]:
            if stuck != NONE:
                link(starts, items, stuck - lo, p - lo, fill)
            stuck = p


@leaf
def chain_values(profile: MemoryProfile, made_at: Ints, following: Ints, newest: Ints) -> None:
    """Where every value is made, and the next value of the same tensor (``newest``: all NONE)."""
    for p in range(len(profile.sequence)):
        for v in range(profile.value_start[p], profile.value_start[p + 1]):
            t = profile.value_tensor[v]
            made_at[v] = p
            if newest[t] != NONE:
                following[newest[t]] = v
            newest[t] = v


@inner
def open_window(
    problem: Arrays, profile: MemoryProfile, movable: Flags, lo: int, hi: int
) -> Window:
    """The :class:`Window` of positions lo..hi-1."""
    values, count = len(profile.value_tensor), hi - lo
    group, size = np.full(values, NONE, np.int64), np.zeros(values, np.int64)
    held, own = np.zeros(values, np.bool_), np.zeros(len(profile.sequence), np.int64)
    groups = group_values(problem, profile, group, size, held, own)
    last = np.full(groups, NONE, np.int64)
    live = live_before(profile, group, size, held, last, lo)
    made_at, following = np.zeros(values, np.int64), np.full(values, NONE, np.int64)
    chain_values(profile, made_at, following, np.full(len(problem.nbytes), NONE, np.int64))
    starts, items = np.zeros(count + 1, np.int64), np.zeros(0, np.int64)
    link_window(problem, profile, movable, made_at, lo, hi, following, starts, items, False)
    add_up(starts)
    items = np.zeros(starts[count], np.int64)
    link_window(problem, profile, movable, made_at, lo, hi, following, starts, items, True)
    shift_back(starts)
    waits = np.zeros(count, np.int16)
    for item in items:
        waits[item] += 1
    local = np.full(groups, NONE, np.int64)
    slots = profile.slot_start[hi] - profile.slot_start[lo]
    made = profile.value_start[hi] - profile.value_start[lo]
    pairs = count_pairs(problem, profile, lo, hi)
    window = Window(
        starts,
        items,
        waits,
        np.zeros(count + 1, np.int64),
        np.zeros(slots, np.int64),
        np.zeros(count + 1, np.int64),
        np.zeros(made, np.int64),
        np.zeros(slots + made, np.int16),
        np.zeros(slots + made, np.int64),
        np.zeros(slots + made, np.bool_),
        own[lo:hi].copy(),
        np.zeros(count + 1, np.int64),
        np.zeros(pairs, np.int64),
        np.zeros(pairs, np.int64),
        np.full(1, live),
    )
    used = fill_window(problem, profile, group, size, held, last, local, lo, hi, window)
    return Window(
        starts,
        items,
        waits,
        window.read_start,
        window.read_group,
        window.made_start,
        window.made_group,
        window.reads_left[:used],
        window.size[:used],
        window.dies[:used],
        window.own,
        window.inplace_start,
        window.inplace_made,
        window.inplace_read,
        window.live,
    )


@leaf
def count_pairs(problem: Arrays, profile: MemoryProfile, lo: int, hi: int) -> int:
    """How many in-place candidates the nodes of the window have."""
    pairs = 0 * lo
    for p in range(lo, hi):
        node = profile.sequence[p]
        for w in range(problem.write_start[node], problem.write_start[node + 1]):
            pairs += problem.inplace_start[w + 1] - problem.inplace_start[w]
    return pairs


@leaf
def fill_window(
    problem: Arrays,
    profile: MemoryProfile,
    group: Ints,
    size: Ints,
    held: Flags,
    last: Ints,
    local: Ints,
    lo: int,
    hi: int,
    window: Window,
) -> int:
    """Fill reads, makes and in-place pairs; returns how many groups are touched."""
    used = 0 * lo
    reads, makes, pairs = used, used, used
    for p in range(lo, hi):
        j, node = p - lo, profile.sequence[p]
        window.own[j] += problem.workspace[node] + problem.inside[node]
        for k in range(profile.slot_start[p], profile.slot_start[p + 1]):
            v = profile.slot_value[k]
            if v < 0 or group[v] < 0:
                continue
            g = group[v]
            if local[g] == NONE:
                local[g] = used
                window.size[used], window.dies[used] = size[g], not held[g] and last[g] < hi
                used += 1
            window.read_group[reads] = local[g]
            window.reads_left[local[g]] += 1
            reads += 1
        for k in range(profile.value_start[p + 1] - profile.value_start[p]):
            v, w = profile.value_start[p] + k, problem.write_start[node] + k
            g = group[v]
            if g < 0 or local[g] != NONE:
                continue
            local[g] = used
            window.size[used], window.dies[used] = size[g], not held[g] and last[g] < hi
            window.made_group[makes] = used
            for c in range(problem.inplace_start[w], problem.inplace_start[w + 1]):
                source = problem.inplace_of[c]
                slot = profile.slot_start[p] + find_slot(problem, node, source)
                u = profile.slot_value[slot]
                alike = problem.alike[source] == problem.alike[problem.writes[w]]
                if u >= 0 and group[u] >= 0 and alike and not held[group[u]]:
                    window.inplace_made[pairs] = used
                    window.inplace_read[pairs] = local[group[u]]
                    pairs += 1
            used += 1
            makes += 1
        window.read_start[j + 1], window.made_start[j + 1] = reads, makes
        window.inplace_start[j + 1] = pairs
    return used
