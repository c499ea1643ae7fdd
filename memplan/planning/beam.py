"""Beam search over execution orders: the part of a sequence between two positions, put in an order
that needs less memory.

Which value every instance reads stays as it is; the order may change within that. A state is the
set of instances that have run. All states of one generation have run equally many; the best few
survive: those with the least excess over the budget so far and, among equals, the fewest bytes
live. Two ways to the same set keep the better one. Beam search: Reddy, "Speech understanding
systems", 1977; over orders with dominance by equal sets: Ahn et al., "Ordering chaos", MLSys 2020,
section 3 (there exact, on small graphs).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memplan.planning.compiled import compiled, inner, leaf
from memplan.planning.evaluate import Profile, evaluate, find_slot
from memplan.planning.index import add_up, shift_back
from memplan.planning.problem import NONE, Arrays, Flags, Floats, Ints

Shorts = npt.NDArray[np.int16]

# Bytes of state that may be copied in one beam search (about half a second); sets the width.
_WORK = 2.5e9
WIDEST = 500


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


class States(NamedTuple):
    """One generation of ``W`` states."""

    waits: Shorts  # (W, M)
    left: Shorts  # (W, G)
    ready: Ints  # (W, M) instances that may run, the first ``waiting``
    waiting: Ints  # (W)
    live: Ints  # (W)
    excess: Ints  # (W)
    mark: Ints  # (W) hash of the set


class Options(NamedTuple):
    """Ways to go on from a generation, ``N`` at most."""

    parent: Ints
    instance: Ints
    live: Ints
    excess: Ints
    score: Floats
    mark: Ints


@leaf
def group_values(
    problem: Arrays, profile: Profile, group: Ints, size: Ints, held: Flags, own: Ints
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
def live_before(profile: Profile, group: Ints, size: Ints, held: Flags, last: Ints, lo: int) -> int:
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
    profile: Profile,
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
def chain_values(profile: Profile, made_at: Ints, following: Ints, newest: Ints) -> None:
    """Where every value is made, and the next value of the same tensor (``newest``: all NONE)."""
    for p in range(len(profile.sequence)):
        for v in range(profile.value_start[p], profile.value_start[p + 1]):
            t = profile.value_tensor[v]
            made_at[v] = p
            if newest[t] != NONE:
                following[newest[t]] = v
            newest[t] = v


@inner
def open_window(problem: Arrays, profile: Profile, movable: Flags, lo: int, hi: int) -> Window:
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
        starts, items, waits,
        np.zeros(count + 1, np.int64), np.zeros(slots, np.int64),
        np.zeros(count + 1, np.int64), np.zeros(made, np.int64),
        np.zeros(slots + made, np.int16), np.zeros(slots + made, np.int64),
        np.zeros(slots + made, np.bool_), own[lo:hi].copy(),
        np.zeros(count + 1, np.int64), np.zeros(pairs, np.int64), np.zeros(pairs, np.int64),
        np.full(1, live),
    )  # fmt: skip
    used = fill_window(problem, profile, group, size, held, last, local, lo, hi, window)
    return Window(
        starts, items, waits, window.read_start, window.read_group, window.made_start,
        window.made_group, window.reads_left[:used], window.size[:used], window.dies[:used],
        window.own, window.inplace_start, window.inplace_made, window.inplace_read, window.live,
    )  # fmt: skip


@leaf
def count_pairs(problem: Arrays, profile: Profile, lo: int, hi: int) -> int:
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
    profile: Profile,
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


@leaf
def run_instance(window: Window, left: Shorts, live: int, j: int) -> tuple[int, int]:
    """Bytes while instance ``j`` runs, and live behind it. ``left`` is as before."""
    during = live + window.own[j]
    for k in range(window.made_start[j], window.made_start[j + 1]):
        during += window.size[window.made_group[k]]
        live += window.size[window.made_group[k]]
    first, end = window.read_start[j], window.read_start[j + 1]
    for k in range(first, end):
        g = window.read_group[k]
        if not window.dies[g]:
            continue
        # The last of the slots that read it here settles it.
        mine, later = 0, False
        for other in range(first, end):
            if window.read_group[other] == g:
                mine += 1
                later = later or other > k
        if not later and left[g] == mine:
            live -= window.size[g]
    for k in range(window.inplace_start[j], window.inplace_start[j + 1]):
        g, mine = window.inplace_read[k], 0
        for other in range(first, end):
            mine += window.read_group[other] == g
        if window.dies[g] and left[g] == mine:
            during -= window.size[window.inplace_made[k]]
            break
    return during, live


@leaf
def list_options(
    window: Window, states: States, count: int, budget: int, noise: float, key: Ints,
    options: Options,
) -> int:  # fmt: skip
    """All ways to go on; how many."""
    found = 0 * count
    for b in range(count):
        for k in range(states.waiting[b]):
            if found == len(options.parent):
                return found
            j = states.ready[b, k]
            during, live = run_instance(window, states.left[b], states.live[b], j)
            excess = states.excess[b] + max(during - budget, 0)
            options.parent[found], options.instance[found] = b, j
            options.live[found], options.excess[found] = live, excess
            options.mark[found] = states.mark[b] ^ key[j]
            factor = 1.0 + noise * np.random.random() if noise > 0 else 1.0
            options.score[found] = excess + live * factor
            found += 1
    return found


@leaf
def follow(window: Window, old: States, new: States, place: int, options: Options, o: int) -> None:
    """Write the state that option ``o`` leads to."""
    b, j = options.parent[o], options.instance[o]
    for k in range(new.waits.shape[1]):
        new.waits[place, k] = old.waits[b, k]
    for k in range(new.left.shape[1]):
        new.left[place, k] = old.left[b, k]
    count = 0
    for k in range(old.waiting[b]):
        if old.ready[b, k] != j:
            new.ready[place, count] = old.ready[b, k]
            count += 1
    for k in range(window.read_start[j], window.read_start[j + 1]):
        new.left[place, window.read_group[k]] -= 1
    for k in range(window.after_start[j], window.after_start[j + 1]):
        other = window.after[k]
        new.waits[place, other] -= 1
        if new.waits[place, other] == 0:
            new.ready[place, count] = other
            count += 1
    new.waiting[place], new.live[place] = count, options.live[o]
    new.excess[place], new.mark[place] = options.excess[o], options.mark[o]


@inner
def new_states(width: int, count: int, groups: int) -> States:
    """Room for a generation."""
    return States(
        np.zeros((width, count), np.int16), np.zeros((width, groups), np.int16),
        np.zeros((width, count), np.int64), np.zeros(width, np.int64), np.zeros(width, np.int64),
        np.zeros(width, np.int64), np.zeros(width, np.int64),
    )  # fmt: skip


@inner
def first_state(window: Window, states: States) -> None:
    """Nothing has run."""
    states.waits[0], states.left[0] = window.waits, window.reads_left
    ready = np.flatnonzero(window.waits == 0)
    states.ready[0, : len(ready)] = ready
    states.waiting[0], states.live[0] = len(ready), window.live[0]


@inner
def search_order(window: Window, budget: int, width: int, noise: float) -> Ints:
    """The instances of the window in the best order found."""
    count = len(window.waits)
    old = new_states(width, count, len(window.size))
    new = new_states(width, count, len(window.size))
    first_state(window, old)
    key = np.random.randint(0, 1 << 62, count)
    room = min(width * count, 200 * width + count)
    options = Options(
        np.zeros(room, np.int64), np.zeros(room, np.int64), np.zeros(room, np.int64),
        np.zeros(room, np.int64), np.zeros(room), np.zeros(room, np.int64),
    )  # fmt: skip
    parent, chosen = np.zeros((count, width), np.int32), np.zeros((count, width), np.int32)
    table = np.zeros(4 * width + 1, np.int64)
    states = 1
    for step in range(count):
        found = list_options(window, old, states, budget, noise, key, options)
        order = np.argsort(options.score[:found], kind="mergesort")
        table[:] = 0
        states = 0
        for o in order:
            if seen_before(table, options.mark[o]):
                continue
            follow(window, old, new, states, options, o)
            parent[step, states] = options.parent[o]
            chosen[step, states] = options.instance[o]
            states += 1
            if states == width:
                break
        old, new = new, old
    result = np.zeros(count, np.int64)
    b = old.excess[:states].argmin()
    for step in range(count - 1, -1, -1):
        result[step] = chosen[step, b]
        b = parent[step, b]
    return result


@leaf
def seen_before(table: Ints, mark: int) -> bool:
    """Whether ``mark`` (not 0) is in the hash table; it is from now on."""
    place = mark % len(table)
    while table[place] != 0:
        if table[place] == mark:
            return True
        place = place + 1 if place + 1 < len(table) else 0
    table[place] = mark
    return False


@compiled
def resequence(
    problem: Arrays,
    sequence: Ints,
    movable: Flags,
    budget: int,
    lo: int,
    hi: int,
    width: int,
    noise: float,
) -> Ints:
    """``sequence`` with positions lo..hi-1 in the order that a beam of ``width`` finds.

    Not necessarily better: in-place outputs are estimated, so the caller evaluates. ``noise``
    (0..1) scales random factors on live bytes. ``width`` 0: as wide as half a second allows.
    """
    window = open_window(problem, evaluate(problem, sequence), movable, lo, hi)
    count = hi - lo
    if width == 0:
        copied = 2.0 * count * (count + len(window.size) + 1)
        width = max(1, min(WIDEST, int(_WORK / copied)))
    result = sequence.copy()
    result[lo:hi] = sequence[lo:hi][search_order(window, budget, width, noise)]
    return result
