"""Evict-and-recompute moves: enumerated and scored on an evaluated sequence.

A move takes a storage out of memory between two of its reads and recomputes, just before the
second, the nodes that make its values again. Inputs that are dead by then are either kept alive
longer or recomputed too (the *closure*), whichever the score prefers. What is read in another form
is encoded at a second place, right behind what makes the tensor, and kept from there on. Scores are
estimates on the profile; a move that is taken is evaluated exactly.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from memplan.solver.evaluate import MemoryProfile
from memplan.solver.index import Index, latest_before, shift_excess
from memplan.solver.jit import leaf
from memplan.solver.problem import NONE, Arrays, Flags, Floats, Ints

# The storage of an extension that a move makes itself: another form of a tensor.
ENCODED = -2


class WorkArrays(NamedTuple):
    """Reused work arrays; ``stamp`` marks are compared with a counter instead of being cleared."""

    stamp: Ints  # (1) the counter
    node_mark: Ints
    tensor_mark: Ints  # made by a node of the move under construction
    storage_mark: Ints  # already among the extensions
    reader: Ints  # last chosen node that reads a tensor
    reader_mark: Ints
    made_by: Ints  # the node of the move that makes a tensor
    chosen: Ints  # nodes of the move under construction, in original order
    queue: Ints  # the same in the order in which they were added
    ext_storage: Ints
    ext_tensor: Ints
    ext_from: Ints
    ext_size: Ints
    ext_harm: Floats  # excess that keeping it alive adds, taken alone
    event_at: Ints
    event_by: Ints
    best: Ints  # nodes of the best closure found


class Context(NamedTuple):
    """What moves are scored by: an evaluated sequence, prices and the budget. Compiled code takes
    no dataclass, but named tuples of these."""

    problem: Arrays
    profile: MemoryProfile
    tables: Index
    scratch: WorkArrays
    movable: Flags
    price: Floats
    budget: int


class Gap(NamedTuple):
    """A stretch in which a storage is out of memory, and how what it holds is made again."""

    evicted: int  # the storage
    way: int  # see maker_of
    after: int  # the last position that reads it before, or makes it
    at: int  # the position before which it is made again


@leaf
def maker_of(problem: Arrays, tensor: int, way: int) -> int:
    """The node that makes a tensor again in the given way: 0 is ``maker``, the next are ``others``;
    where there is no such way, ``maker``. NONE if nothing does."""
    if way > 0 and len(problem.others) > 0:
        k = problem.other_start[tensor] + way - 1
        if k < problem.other_start[tensor + 1]:
            return int(problem.others[k])
    return int(problem.maker[tensor])


@leaf
def ways_to_make(problem: Arrays, tensor: int) -> int:
    """How many nodes make a tensor again."""
    if problem.maker[tensor] == NONE:
        return 0
    if len(problem.others) == 0:
        return 1
    return int(1 + problem.other_start[tensor + 1] - problem.other_start[tensor])


@leaf
def encoded_by(problem: Arrays, node: int) -> int:
    """The tensor of which ``node`` makes another form, or NONE."""
    return int(problem.encodes[node]) if len(problem.encodes) > 0 else NONE


@leaf
def place_of(problem: Arrays, index: Index, node: int, at: int) -> int:
    """The position before which ``node`` is inserted by a move at ``at``."""
    tensor = encoded_by(problem, node)
    return at if tensor == NONE else int(index.made_at[latest_before(index, tensor, at)] + 1)


@leaf
def add_node(problem: Arrays, scratch: WorkArrays, node: int, count: int, stamp: int) -> int:
    """Add ``node`` to the move under construction; the new count, or -1 when it is full."""
    if scratch.node_mark[node] == stamp:
        return count
    if count >= len(scratch.chosen):
        return -1
    scratch.node_mark[node] = stamp
    scratch.queue[count] = node
    for k in range(problem.write_start[node], problem.write_start[node + 1]):
        scratch.tensor_mark[problem.writes[k]] = stamp
        scratch.made_by[problem.writes[k]] = node
    # Insertion keeps the nodes in original order.
    p = count
    while p > 0 and problem.rank[scratch.chosen[p - 1]] > problem.rank[node]:
        scratch.chosen[p] = scratch.chosen[p - 1]
        p -= 1
    scratch.chosen[p] = node
    return count + 1


@leaf
def drop_made(index: Index, scratch: WorkArrays, extensions: int, stamp: int) -> tuple[int, bool]:
    """Forget extensions of tensors that the move now makes itself.

    Returns how many are left, and whether another tensor of a dropped storage may be read.
    """
    kept, again = 0, False
    for e in range(extensions):
        s = scratch.ext_storage[e]
        if s != ENCODED and scratch.tensor_mark[scratch.ext_tensor[e]] == stamp:
            if s >= 0:
                scratch.storage_mark[s] = 0
                again = again or index.value_start[s + 1] - index.value_start[s] > 1
            continue
        scratch.ext_storage[kept] = s
        scratch.ext_tensor[kept] = scratch.ext_tensor[e]
        scratch.ext_from[kept] = scratch.ext_from[e]
        scratch.ext_size[kept] = scratch.ext_size[e]
        scratch.ext_harm[kept] = scratch.ext_harm[e]
        kept += 1
    return kept, again


@leaf
def close_over(
    context: Context, gap: Gap, done: int, count: int, extensions: int, most: float
) -> tuple[int, int]:
    """Look at what the nodes from ``done`` on read: what is gone with the evicted storage must be
    recomputed too, other dead inputs are listed as extensions (kept alive until ``gap.at``). Their
    harm is counted up to ``most``, what the eviction can save.

    Returns the number of nodes (-1: impossible) and of extensions.
    """
    problem, profile, index = context.problem, context.profile, context.tables
    scratch, stamp, at = context.scratch, context.scratch.stamp[0], gap.at
    k = done
    while k < count:
        node = scratch.queue[k]
        k += 1
        early = encoded_by(problem, node) != NONE
        for r in range(problem.read_start[node], problem.read_start[node + 1]):
            t = problem.reads[r]
            if early:
                # The tensor is there; what else it reads is made by what encodes, too.
                missing = not problem.resident[t] and latest_before(index, t, at) == NONE
                if missing and problem.maker[t] != NONE:
                    count = add_node(problem, scratch, problem.maker[t], count, stamp)
                if count < 0 or (missing and problem.maker[t] == NONE):
                    return -1, 0
                continue
            if len(profile.gone) > 0 and profile.gone[t] < at:
                return -1, 0
            if problem.resident[t] or scratch.tensor_mark[t] == stamp:
                continue
            v = latest_before(index, t, at)
            s = profile.value_storage[v] if v >= 0 else gap.evicted
            if s == gap.evicted:
                maker = maker_of(problem, t, gap.way)
                if maker == NONE or (v == NONE and extensions >= len(scratch.ext_from)):
                    return -1, 0
                tensor = encoded_by(problem, maker)
                if v == NONE and tensor != NONE:
                    if latest_before(index, tensor, at) == NONE:
                        return -1, 0
                    scratch.ext_storage[extensions], scratch.ext_tensor[extensions] = ENCODED, t
                    scratch.ext_from[extensions] = place_of(problem, index, maker, at)
                    scratch.ext_size[extensions] = problem.nbytes[t]
                    scratch.ext_harm[extensions] = 0.0
                    extensions += 1
                count = add_node(problem, scratch, maker, count, stamp)
                if count < 0:
                    return -1, 0
                continue
            if s == NONE:
                # A view of a resident tensor; or nobody read it, so it was never stored.
                if profile.value_reads[v] > 0:
                    continue
                start, size = index.made_at[v], problem.nbytes[t]
            else:
                start, size = min(profile.death[s], profile.value_lost[v]), profile.size[s]
                if start > at or scratch.storage_mark[s] == stamp:
                    continue
                scratch.storage_mark[s] = stamp
            if extensions >= len(scratch.ext_from):
                return -1, 0
            scratch.ext_storage[extensions] = s
            scratch.ext_tensor[extensions] = t
            scratch.ext_from[extensions] = start
            scratch.ext_size[extensions] = size
            scratch.ext_harm[extensions] = shift_excess(
                profile, index, context.budget, start, at - 1, size, most
            )
            extensions += 1
    return count, extensions


@leaf
def spread_excess(context: Context, gap: Gap, extensions: int, most: float) -> float:
    """Excess change when the storage leaves the gap and every extension lives on until its end.

    Infinite once it adds more than ``most``, what the eviction alone saves.
    """
    scratch, size = context.scratch, context.profile.size[gap.evicted]
    events = 0
    scratch.event_at[0], scratch.event_by[0] = gap.after + 1, -size
    events = 1
    for e in range(extensions):
        p = events
        while p > 0 and scratch.event_at[p - 1] > scratch.ext_from[e]:
            scratch.event_at[p] = scratch.event_at[p - 1]
            scratch.event_by[p] = scratch.event_by[p - 1]
            p -= 1
        scratch.event_at[p], scratch.event_by[p] = scratch.ext_from[e], scratch.ext_size[e]
        events += 1
    change, added, shift = 0.0, 0.0, 0
    for e in range(events):
        shift += scratch.event_by[e]
        end = scratch.event_at[e + 1] if e + 1 < events else gap.at
        if end > scratch.event_at[e]:
            part = shift_excess(
                context.profile,
                context.tables,
                context.budget,
                scratch.event_at[e],
                end - 1,
                shift,
                most - added,
            )
            change += part
            added += max(part, 0.0)
            if added > most:
                return np.inf
    return change


@leaf
def insertion_excess(context: Context, gap: Gap, count: int, extensions: int) -> float:
    """Excess at the inserted nodes themselves, run one after the other before ``gap.at``."""
    problem, profile, index = context.problem, context.profile, context.tables
    scratch, at = context.scratch, gap.at
    level = profile.dynamic[at] - problem.inside[profile.sequence[at]] - index.born[at]
    level -= profile.size[gap.evicted]
    for e in range(extensions):
        level += scratch.ext_size[e]
    stamp = scratch.stamp[0]
    for k in range(count):
        node = scratch.chosen[k]
        if encoded_by(problem, node) != NONE:
            continue
        for r in range(problem.read_start[node], problem.read_start[node + 1]):
            scratch.reader[problem.reads[r]] = k
            scratch.reader_mark[problem.reads[r]] = stamp
    excess = 0.0
    for k in range(count):
        node = scratch.chosen[k]
        if encoded_by(problem, node) != NONE:
            continue
        for w in range(problem.write_start[node], problem.write_start[node + 1]):
            if problem.alias_of[w] == NONE:
                level += problem.nbytes[problem.writes[w]]
        here = level + problem.workspace[node]
        if here > context.budget:
            excess += here - context.budget
        # Outputs that only the next inserted nodes read die on the way.
        for r in range(problem.read_start[node], problem.read_start[node + 1]):
            t = problem.reads[r]
            if scratch.tensor_mark[t] != stamp or scratch.reader[t] != k:
                continue
            scratch.reader[t] = NONE  # a node may read it in two slots
            if not wanted(profile, index, gap.evicted, t, at):
                w = output_slot(problem, scratch.made_by[t], t)
                if problem.alias_of[w] == NONE:
                    level -= problem.nbytes[t]
    return excess


@leaf
def output_slot(problem: Arrays, node: int, tensor: int) -> int:
    """The write slot of ``tensor`` at ``node``."""
    for w in range(problem.write_start[node], problem.write_start[node + 1]):
        if problem.writes[w] == tensor:
            return w
    return int(problem.write_start[node])


@leaf
def wanted(profile: MemoryProfile, index: Index, evicted: int, tensor: int, at: int) -> bool:
    """Whether ``tensor`` is one of the evicted values that are read at ``at`` or later."""
    for k in range(index.value_start[evicted], index.value_start[evicted + 1]):
        v = index.values[k]
        if profile.value_tensor[v] == tensor and index.last_read[v] >= at > index.made_at[v]:
            return True
    return False


@leaf
def only_moves(context: Context, gap: Gap, node: int) -> bool:
    """Whether nobody reads the node's last instance before ``gap.at``.

    Then running it there replaces that instance instead of adding one, for free.
    """
    if not context.movable[node]:
        return False
    problem, profile, index = context.problem, context.profile, context.tables
    for w in range(problem.write_start[node], problem.write_start[node + 1]):
        t = problem.writes[w]
        v = latest_before(index, t, gap.at)
        if v < 0 or problem.pinned[t]:
            return False
        if profile.value_reads[v] == 0:
            continue
        s = profile.value_storage[v]
        if s != gap.evicted or index.read_at[index.read_start[s]] < gap.at:
            return False
    return True


@leaf
def add_evicted(context: Context, gap: Gap, count: int) -> int:
    """Add the nodes that make again what is read of the evicted storage behind the gap.

    The number of nodes, or -1 when that is impossible.
    """
    problem, profile, index = context.problem, context.profile, context.tables
    scratch, stamp = context.scratch, context.scratch.stamp[0]
    for k in range(index.value_start[gap.evicted], index.value_start[gap.evicted + 1]):
        v = index.values[k]
        # Not read from here on, or made at the reader itself (a view, or in place).
        if index.last_read[v] < gap.at or index.made_at[v] >= gap.at:
            continue
        maker = maker_of(problem, profile.value_tensor[v], gap.way)
        if index.made_at[v] > gap.after or maker == NONE or encoded_by(problem, maker) != NONE:
            return -1
        count = add_node(problem, scratch, maker, count, stamp)
        if count < 0:
            return -1
    return count


@leaf
def saved_alone(context: Context, gap: Gap) -> float:
    """What the eviction alone saves: no closure gains more."""
    size = context.profile.size[gap.evicted]
    first, last = gap.after + 1, gap.at - 1
    return -shift_excess(
        context.profile, context.tables, context.budget, first, last, -size, np.inf
    )


@leaf
def score_move(context: Context, gap: Gap, depth: int, threshold: float) -> tuple[float, int]:
    """Best score of evicting a storage over ``gap``, and its number of nodes.

    The score is saved excess (byte·steps) per second of recomputation; 0: no gain, or none above
    ``threshold``. The nodes are left in ``scratch.best``.
    """
    problem, scratch, price = context.problem, context.scratch, context.price
    scratch.stamp[0] += 1
    stamp = scratch.stamp[0]
    # A literal 0 is a type of its own to numba, which would compile every callee once more.
    nothing = 0 * stamp
    count = add_evicted(context, gap, nothing)
    if count < 0:
        return 0.0, 0
    most = saved_alone(context, gap)
    best_score, best_count = 0.0, 0
    done, extensions, priced, cost = nothing, nothing, nothing, 1e-300
    for _ in range(depth):
        count, extensions = close_over(context, gap, done, count, extensions, most)
        if count < 0:
            break
        done = count
        for k in range(priced, count):
            if not only_moves(context, gap, scratch.queue[k]):
                cost += price[scratch.queue[k]]
        priced = count
        if most / cost <= max(best_score, threshold):
            break
        gain = -spread_excess(context, gap, extensions, most)
        if gain > 0:
            gain -= insertion_excess(context, gap, count, extensions)
        if gain > 0 and gain / cost > best_score:
            best_score, best_count = gain / cost, count
            for k in range(count):
                scratch.best[k] = scratch.chosen[k]
        worst = worst_extension(problem, scratch, price, extensions)
        if worst == NONE:
            break
        count = add_node(problem, scratch, worst, count, stamp)
        if count < 0:
            break
        extensions, again = drop_made(context.tables, scratch, extensions, stamp)
        if again:
            done = nothing
    return best_score, best_count


@leaf
def worst_extension(problem: Arrays, scratch: WorkArrays, price: Floats, extensions: int) -> int:
    """The node that would recompute the extension that costs most excess per second, or NONE."""
    worst, most = NONE, 0.0
    for e in range(extensions):
        harm = scratch.ext_harm[e]
        for way in range(ways_to_make(problem, scratch.ext_tensor[e])):
            maker = maker_of(problem, scratch.ext_tensor[e], way)
            if encoded_by(problem, maker) != NONE:
                continue
            if harm > 0 and harm / price[maker] > most:
                worst, most = maker, harm / price[maker]
    return worst
