"""All moves that lower the bytes in use at one position."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from memplan.solver.evaluate import MemoryProfile
from memplan.solver.index import Index, build_index, shift_excess
from memplan.solver.jit import inner, leaf
from memplan.solver.problem import NONE, Arrays, Flags, Floats, Ints
from memplan.solver.search.moves import (
    Context,
    Gap,
    WorkArrays,
    maker_of,
    place_of,
    saved_alone,
    score_move,
    ways_to_make,
)

# Moves that score less than this share of the best are left out.
NEAR = 0.5
# Room for the nodes of so many longest closures; moves beyond that are left out.
LISTED = 64
# Depth of the closures that are looked at first.
SHALLOW = 2


class Moves(NamedTuple):
    """Moves, best first; the nodes of move ``k`` are ``used[k]`` from ``nodes[start[k]]`` on."""

    storage: Ints
    at: Ints  # position before which the storage is made again
    score: Floats  # saved excess (byte·steps) per second, times the random factor
    start: Ints
    used: Ints
    nodes: Ints
    places: Ints  # by node: the position before which it is inserted, ``at`` or an earlier one


@inner
def new_scratch(problem: Arrays, storages: int, longest: int) -> WorkArrays:
    """Work arrays for closures of up to ``longest`` nodes."""
    nodes, tensors = len(problem.cost), len(problem.nbytes)
    return WorkArrays(
        np.zeros(1, np.int64),
        np.zeros(nodes, np.int64),
        np.zeros(tensors, np.int64),
        np.zeros(storages, np.int64),
        np.zeros(tensors, np.int64),
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


@leaf
def gap_around(profile: MemoryProfile, index: Index, storage: int, step: int) -> tuple[int, int]:
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


class Gaps(NamedTuple):
    """Stretches in which a storage lies idle over one step, the most promising first."""

    storage: Ints
    before: Ints  # the read (or the birth) before the step
    after: Ints  # the read behind it
    factor: Floats  # random factor on the scores
    bound: Floats  # no move in this gap scores more


@leaf
def idle_gaps(context: Context, step: int, noise: float, gaps: Gaps) -> int:
    """List the gaps around ``step`` that may be used; how many there are.

    Their bound is what evicting alone would bring, per second.
    """
    profile, index = context.profile, context.tables
    count = 0 * step
    for s in range(len(profile.size)):
        if profile.birth[s] >= step or profile.death[s] <= step + 1:
            continue
        if profile.held[s] == 1 or profile.size[s] == 0:
            continue
        first, last = gap_around(profile, index, s, step)
        if last == NONE:
            continue
        gap = Gap(s, 0, first, last)
        cheapest = least_price(context, gap)
        if cheapest == np.inf:
            continue
        gaps.factor[count] = 1.0
        if noise > 0:
            gaps.factor[count] = 1.0 + noise * (2.0 * np.random.random() - 1.0)
        gaps.storage[count], gaps.before[count], gaps.after[count] = s, first, last
        gaps.bound[count] = saved_alone(context, gap) / (cheapest + 1e-300) * gaps.factor[count]
        count += 1
    return count


@leaf
def least_price(context: Context, gap: Gap) -> float:
    """What is read behind the gap must be made again, by the cheapest of its makers at least."""
    problem, profile, index = context.problem, context.profile, context.tables
    cheapest = np.inf
    for k in range(index.value_start[gap.evicted], index.value_start[gap.evicted + 1]):
        v = index.values[k]
        if index.last_read[v] < gap.at or index.made_at[v] >= gap.at:
            continue
        tensor = profile.value_tensor[v]
        for way in range(ways_to_make(problem, tensor)):
            cheapest = min(cheapest, context.price[maker_of(problem, tensor, way)])
    return cheapest


@leaf
def score_gaps(
    context: Context, gaps: Gaps, best: Ints, depth: int, moves: Moves, filled: int
) -> int:
    """Score the gaps in the order ``best`` with closures up to ``depth``; fills ``moves``.

    Gaps that cannot come near the best score are left out. Returns the length of ``moves.nodes``.
    """
    leading = 0.0
    for g in best:
        leading = max(leading, moves.score[g])
    for g in best:
        if gaps.bound[g] < NEAR * leading:
            break
        for way in range(most_ways(context, gaps.storage[g])):
            enough = max(NEAR * leading, moves.score[g]) / gaps.factor[g]
            gap = Gap(gaps.storage[g], way, gaps.before[g], gaps.after[g])
            value, count = score_move(context, gap, depth, enough)
            value *= gaps.factor[g]
            if count == 0 or value <= moves.score[g] or filled + count > len(moves.nodes):
                continue
            for k in range(count):
                node = context.scratch.best[k]
                moves.nodes[filled + k] = node
                moves.places[filled + k] = place_of(context.problem, context.tables, node, gap.at)
            moves.score[g], moves.start[g], moves.used[g] = value, filled, count
            filled += count
            leading = max(leading, value)
    return filled


@leaf
def most_ways(context: Context, storage: int) -> int:
    """The most ways in which a value of ``storage`` can be made again."""
    profile, index = context.profile, context.tables
    most = 0 * storage
    for k in range(index.value_start[storage], index.value_start[storage + 1]):
        most = max(most, ways_to_make(context.problem, profile.value_tensor[index.values[k]]))
    return most


@inner
def enumerate_moves(
    problem: Arrays,
    profile: MemoryProfile,
    movable: Flags,
    price: Floats,
    budget: int,
    step: int,
    depth: int,
    longest: int,
    noise: float,
) -> Moves:
    """Moves whose gap contains ``step``, best first; ``noise`` scales random factors on scores.

    Only moves that score at least ``NEAR`` times as much as the best one. Shallow closures are
    looked at first: what they bring rules most of the deep ones out.
    """
    storages = len(profile.size)
    scratch = new_scratch(problem, storages, longest)
    index = build_index(problem, profile)
    context = Context(problem, profile, index, scratch, movable, price, budget)
    gaps = Gaps(
        np.zeros(storages, np.int64),
        np.zeros(storages, np.int64),
        np.zeros(storages, np.int64),
        np.zeros(storages),
        np.zeros(storages),
    )
    count = idle_gaps(context, step, noise, gaps)
    best = np.argsort(-gaps.bound[:count], kind="mergesort")
    moves = Moves(
        gaps.storage[:count],
        gaps.after[:count],
        np.zeros(count),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.zeros(LISTED * longest, np.int64),
        np.zeros(LISTED * longest, np.int64),
    )
    filled = score_gaps(context, gaps, best, min(depth, SHALLOW), moves, 0 * count)
    if depth > SHALLOW:
        score_gaps(context, gaps, best, depth, moves, filled)
    if count == 0:
        return moves
    found = np.flatnonzero((moves.score > 0) & (moves.score >= NEAR * moves.score.max()))
    found = found[np.argsort(-moves.score[found], kind="mergesort")]
    return Moves(
        moves.storage[found],
        moves.at[found],
        moves.score[found],
        moves.start[found],
        moves.used[found],
        moves.nodes,
        moves.places,
    )


@leaf
def removal_change(
    problem: Arrays, profile: MemoryProfile, index: Index, budget: int, position: int
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
            change += shift_excess(
                profile, index, budget, start, position - 1, profile.size[s], np.inf
            )
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
        change += shift_excess(
            profile, index, budget, earlier + 1, position, -profile.size[s], np.inf
        )
    return change if problem.cost[node] >= 0 else 1.0


@leaf
def mark_clones(sequence: Ints, original: Flags, seen: Flags, clones: Flags) -> None:
    """Mark positions that recompute (``seen`` and ``clones``: all false)."""
    for p in range(len(sequence)):
        clones[p] = seen[sequence[p]] or not original[sequence[p]]
        seen[sequence[p]] = True


@inner
def clone_positions(sequence: Ints, original: Flags) -> Ints:
    """Positions that recompute: the node has run before, or it is only a rebuild rule."""
    clones = np.zeros(len(sequence), np.bool_)
    mark_clones(sequence, original, np.zeros(len(original), np.bool_), clones)
    return np.flatnonzero(clones)


@leaf
def is_read(profile: MemoryProfile, position: int) -> bool:
    """Whether somebody reads what the instance at ``position`` makes."""
    for v in range(profile.value_start[position], profile.value_start[position + 1]):
        if profile.value_reads[v] > 0:
            return True
    return False


@inner
def unread_positions(profile: MemoryProfile, positions: Ints) -> Ints:
    """Those of ``positions`` none of whose outputs is read."""
    unread = np.zeros(len(positions), np.bool_)
    for k in range(len(positions)):
        unread[k] = not is_read(profile, positions[k])
    return positions[unread]


@leaf
def mark_replaced(
    profile: MemoryProfile, movable: Flags, first: Ints, again: Flags, replaced: Flags
) -> bool:
    """Mark the instances of :func:`replaced_positions`; whether there are any."""
    found = False
    for p in range(len(replaced) - 1, -1, -1):
        first[profile.sequence[p]] = p
    for p in range(len(replaced) - 1, -1, -1):
        node = profile.sequence[p]
        if again[node] and (movable[node] or first[node] != p) and not is_read(profile, p):
            replaced[p] = found = True
        again[node] = True
    return found


@inner
def replaced_positions(profile: MemoryProfile, movable: Flags) -> Ints:
    """Instances that nobody reads any more because the node is recomputed later.

    First instances only of ``movable`` nodes: taking them out changes the order.
    """
    first = np.zeros(len(movable), np.int64)
    replaced = np.zeros(len(profile.sequence), np.bool_)
    mark_replaced(profile, movable, first, np.zeros(len(movable), np.bool_), replaced)
    return np.flatnonzero(replaced)
