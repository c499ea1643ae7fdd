"""What a beam search must know of a sequence: who waits for whom, and how memory grows.

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
    """The ``L`` instances of a sequence, and the ``G`` groups that live while they run.

    A *group* is a value with its views. ``own`` are bytes at the instance's own step only.
    """

    after_start: Ints  # (L+1) which instances wait for each one
    after: Ints
    waits: Shorts  # (L) for how many
    read_start: Ints  # (L+1) groups read by each instance, one entry per slot
    read_group: Ints
    made_start: Ints  # (L+1) the first group made by each instance: they are numbered as made
    reads_left: Shorts  # (G) slots that read the group
    size: Ints  # (G)
    dies: Flags  # (G) not held to the end
    own: Ints  # (L)
    inplace_start: Ints  # (L+1) pairs: made group, read group whose memory it may take over
    inplace_made: Ints
    inplace_read: Ints


@leaf
def group_values(
    problem: Arrays, profile: MemoryProfile, group: Ints, size: Ints, dies: Flags, own: Ints
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
            dies[count] = not (pinned or profile.value_reads[v] == 0)
            count += 1
    return count


@leaf
def link(starts: Ints, items: Ints, first: int, item: int, fill: bool) -> None:
    """Count an item of ``first``, or write it to its place."""
    if fill:
        items[starts[first]] = item
        starts[first] += 1
    else:
        starts[first + 1] += 1


@leaf
def link_instances(
    profile: MemoryProfile,
    movable: Flags,
    made_at: Ints,
    following: Ints,
    starts: Ints,
    items: Ints,
    fill: bool,
) -> None:
    """The order that must hold: count it, or write it.

    What makes a value runs before what reads it; what reads a value (or makes one that is not
    read) runs before the next value of the same tensor. Nodes that may not move keep their order.
    ``following``: (V) the next value of the same tensor, or NONE.
    """
    stuck = NONE
    for p in range(len(profile.sequence)):
        for k in range(profile.slot_start[p], profile.slot_start[p + 1]):
            v = profile.slot_value[k]
            if v < 0:
                continue
            link(starts, items, made_at[v], p, fill)
            if following[v] != NONE and p < made_at[following[v]]:
                link(starts, items, p, made_at[following[v]], fill)
        for v in range(profile.value_start[p], profile.value_start[p + 1]):
            if following[v] != NONE:
                link(starts, items, p, made_at[following[v]], fill)
        if not movable[profile.sequence[p]]:
            if stuck != NONE:
                link(starts, items, stuck, p, fill)
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
def open_window(problem: Arrays, profile: MemoryProfile, movable: Flags) -> Window:
    """The :class:`Window` of a sequence."""
    values, count = len(profile.value_tensor), len(profile.sequence)
    group, size = np.full(values, NONE, np.int64), np.zeros(values, np.int64)
    dies, own = np.zeros(values, np.bool_), np.zeros(count, np.int64)
    groups = group_values(problem, profile, group, size, dies, own)
    made_at, following = np.zeros(values, np.int64), np.full(values, NONE, np.int64)
    chain_values(profile, made_at, following, np.full(len(problem.nbytes), NONE, np.int64))
    starts, items = np.zeros(count + 1, np.int64), np.zeros(0, np.int64)
    link_instances(profile, movable, made_at, following, starts, items, False)
    add_up(starts)
    items = np.zeros(starts[count], np.int64)
    link_instances(profile, movable, made_at, following, starts, items, True)
    shift_back(starts)
    waits = np.zeros(count, np.int16)
    for item in items:
        waits[item] += 1
    pairs = count_pairs(problem, profile)
    window = Window(
        starts,
        items,
        waits,
        np.zeros(count + 1, np.int64),
        np.zeros(len(profile.slot_value), np.int64),
        np.zeros(count + 1, np.int64),
        np.zeros(groups, np.int16),
        size[:groups],
        dies[:groups],
        own,
        np.zeros(count + 1, np.int64),
        np.zeros(pairs, np.int64),
        np.zeros(pairs, np.int64),
    )
    fill_window(problem, profile, group, window)
    return window


@leaf
def count_pairs(problem: Arrays, profile: MemoryProfile) -> int:
    """How many in-place candidates the nodes have."""
    pairs = 0 * len(profile.sequence)
    for node in profile.sequence:
        for w in range(problem.write_start[node], problem.write_start[node + 1]):
            pairs += problem.inplace_start[w + 1] - problem.inplace_start[w]
    return pairs


@leaf
def fill_window(problem: Arrays, profile: MemoryProfile, group: Ints, window: Window) -> None:
    """Fill reads, makes and in-place pairs."""
    reads = 0 * len(group)
    makes, pairs = reads, reads
    for p in range(len(profile.sequence)):
        node = profile.sequence[p]
        window.own[p] += problem.workspace[node] + problem.inside[node]
        for k in range(profile.slot_start[p], profile.slot_start[p + 1]):
            v = profile.slot_value[k]
            if v < 0 or group[v] < 0:
                continue
            window.read_group[reads] = group[v]
            window.reads_left[group[v]] += 1
            reads += 1
        for k in range(profile.value_start[p + 1] - profile.value_start[p]):
            v, w = profile.value_start[p] + k, problem.write_start[node] + k
            if group[v] != makes:  # a view, or without memory of its own
                continue
            for c in range(problem.inplace_start[w], problem.inplace_start[w + 1]):
                source = problem.inplace_of[c]
                slot = profile.slot_start[p] + find_slot(problem, node, source)
                u = profile.slot_value[slot]
                alike = problem.alike[source] == problem.alike[problem.writes[w]]
                if u >= 0 and group[u] >= 0 and alike and window.dies[group[u]]:
                    window.inplace_made[pairs], window.inplace_read[pairs] = makes, group[u]
                    pairs += 1
            makes += 1
        window.read_start[p + 1], window.made_start[p + 1] = reads, makes
        window.inplace_start[p + 1] = pairs
