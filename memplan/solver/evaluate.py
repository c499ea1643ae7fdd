"""Exact memory of a sequence, in time linear in its reads and writes.

**Why sequences.** Checkmate (Jain et al., MLSys 2020) describes a plan by two matrices: what is in
memory at each stage, and what is computed in it. That takes about 5n² variables: its linear
relaxation for the ResNet-50 of the public graphs has 638,930 of them, and HiGHS had not solved it
after 430 seconds. Here a plan is a list of node ids in execution order. A node that stands in it
twice is recomputed, and a read takes the latest value of its tensor. A value dies after its last
reader, and no reader comes after the next value of the same tensor, so lifetimes *follow* from the
list: there are no variables for them, no plan in which they disagree, and any number of
repetitions. (Moccasin allows two; the best plans of its own random graphs of 250 and 500 nodes use
three.) Every list whose reads are all made before is a plan. The search space is lists, and this
module says what a list is worth.

**What is counted.** A *storage* is a buffer and the tensors in it. The list is walked once:

1. A graph output has a storage of its own, until the end.
2. A view joins the storage of its input. Recomputing a view is free, but it holds the base.
3. An output that may be written in place takes the storage of an input that nothing reads later.
4. (Reuse of freed buffers is for plain sessions, which fences keep from it.)
5. Else the storage is new. It dies with the last reader of anything in it; unread, it is held.

Memory at a step is the sum of live storages, kernel workspace of the running node on top. The
numbers are those of docs/how/memory-model.md; the budget is held against this sum at every step, so
what a chain of recomputations needs while it runs is in it. Relaxations that leave that out find
plans for low budgets that do not exist: for a U-Net at 30% of its peak such a bound said 14.66% of
extra time, where the best plan then known took 18.5%.

**What was tried.** A prototype gave every node one size that died after its last use. On real
graphs it missed what the runtime measured by up to 40%: views, in-place outputs and workspace were
not in it. Storages cost nothing in complexity; the walk is still linear.

Plain Python is 50 to 100 times too slow for a search that repairs thousands of lists a second.
Compiled by numba, it first spent most of its time on counting references: numba counts those of
every array of every tuple that is passed, atomically. Functions that allocate nothing are compiled
without them (:mod:`memplan.solver.jit`), which made the search several times faster. There is no
incremental evaluator. Moves are *scored* by estimates on the memory profile, and only one that is
about to be accepted is evaluated, in full and exactly.

**Its oracle** is :mod:`memplan.simulate.allocation`: the same rules written a second time, for a
file instead of arrays, after the source of ONNX Runtime. Two programs by two ways of thinking must
agree to the byte whenever a model is written (:mod:`memplan.api.rewrite.check_file`). That is worth
something only while they share no code, so neither may ever import the other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from memplan.solver.jit import compiled, leaf
from memplan.solver.problem import NONE, Arrays, Decision, Flags, Ints, Problem

IMPOSSIBLE = 1 << 60
"""Bytes charged at a position that reads a tensor which nothing has made, or has written over."""


class MemoryProfile(NamedTuple):
    """A sequence of ``L`` instances, evaluated. ``V`` values, ``S`` storages.

    A *value* is one output of one instance. A *storage* is memory that values share; it is live
    in positions ``birth`` ≤ p < ``death``. ``total`` is dynamic bytes and workspace.
    """

    sequence: Ints  # (L) node ids
    slot_start: Ints  # (L+1) into slot_value
    slot_value: Ints  # value read by each slot, NONE for resident tensors
    value_start: Ints  # (L+1) values made at each position
    value_tensor: Ints  # (V)
    value_storage: Ints  # (V) NONE: resident, or dropped because nobody reads it
    value_reads: Ints  # (V)
    value_lost: Ints  # (V) position at which an in-place output overwrites it, or L
    birth: Ints  # (S)
    death: Ints  # (S)
    size: Ints  # (S)
    held: Ints  # (S) 1: a graph output or unread, held to the end
    gone: Ints  # (T or 0) position at which resident memory is written over, or L
    dynamic: Ints  # (L)
    total: Ints  # (L)


@leaf
def count_slots(problem: Arrays, sequence: Ints, slot_start: Ints, value_start: Ints) -> None:
    """Fill the offsets of the read slots and of the values of every position."""
    for p in range(len(sequence)):
        i = sequence[p]
        slot_start[p + 1] = slot_start[p] + problem.read_start[i + 1] - problem.read_start[i]
        value_start[p + 1] = value_start[p] + problem.write_start[i + 1] - problem.write_start[i]


@leaf
def resolve_reads(
    problem: Arrays,
    sequence: Ints,
    slot_start: Ints,
    value_start: Ints,
    latest: Ints,
    slot_value: Ints,
    value_tensor: Ints,
    value_reads: Ints,
) -> None:
    """Fill in which value every slot reads: the latest of its tensor (``latest``: all NONE)."""
    for p in range(len(sequence)):
        i = sequence[p]
        first = problem.read_start[i]
        for k in range(slot_start[p + 1] - slot_start[p]):
            v = latest[problem.reads[first + k]]
            slot_value[slot_start[p] + k] = v
            if v >= 0:
                value_reads[v] += 1
        first = problem.write_start[i]
        for k in range(value_start[p + 1] - value_start[p]):
            t = problem.writes[first + k]
            value_tensor[value_start[p] + k] = t
            latest[t] = value_start[p] + k


@leaf
def find_slot(problem: Arrays, node: int, tensor: int) -> int:
    """The first read slot of ``node`` that reads ``tensor``."""
    for k in range(problem.read_start[node], problem.read_start[node + 1]):
        if problem.reads[k] == tensor:
            return int(k - problem.read_start[node])
    return NONE


class Storages(NamedTuple):
    """Which storage every value lives in; storages are numbered in order of birth."""

    of_value: Ints  # (V) NONE: resident, or dropped because nobody reads it
    lost: Ints  # (V) position at which an in-place output overwrites the value, or L
    birth: Ints  # (S)
    size: Ints  # (S)
    kind: Ints  # (S) 0: ordinary, 1: graph output, 2: fleeting
    last: Ints  # (S) last position that reads it, NONE if none
    pending: Ints  # (S) reads to come while the sequence is walked
    # Values of a storage between two in-place outputs share an epoch, named by its first value.
    epoch: Ints  # (V)
    current: Ints  # (S) the epoch at the position that is walked
    ended: Ints  # (V) by epoch: where it is overwritten, or L


@leaf
def inplace_source(
    problem: Arrays, output: int, node: int, slot_value: Ints, first: int, storages: Storages
) -> int:
    """The value whose storage write slot ``output`` takes over, or NONE (rule 3).

    The node's read slots start at ``first``.
    """
    tensor = problem.writes[output]
    for c in range(problem.inplace_start[output], problem.inplace_start[output + 1]):
        source = problem.inplace_of[c]
        u = slot_value[first + find_slot(problem, node, source)]
        if u < 0 or storages.of_value[u] < 0:
            continue
        s = storages.of_value[u]
        alike = problem.alike[tensor] == problem.alike[source]
        if storages.pending[s] == 1 and storages.kind[s] != 1 and alike:
            return int(u)
    return NONE


@leaf
def assign_storages(
    problem: Arrays,
    sequence: Ints,
    slot_start: Ints,
    slot_value: Ints,
    value_start: Ints,
    value_reads: Ints,
    made: Flags,
    storages: Storages,
) -> int:
    """Rules 1 to 3 and 5 of :mod:`memplan.simulate.allocation`, instance by instance.

    Fills ``storages``; the number of storages. ``made``: all false.
    """
    storage, pending = storages.of_value, storages.pending
    count = 0 * len(sequence)
    for p in range(len(sequence)):
        i = sequence[p]
        for k in range(value_start[p + 1] - value_start[p]):
            v, w = value_start[p] + k, problem.write_start[i] + k
            t = problem.writes[w]
            pinned = problem.pinned[t] and not made[t]
            made[t] = True
            if value_reads[v] == 0 and problem.droppable[w] and not pinned:
                continue
            target, shared = NONE, False
            if not pinned and problem.alias_of[w] >= 0:
                shared = True
                u = slot_value[slot_start[p] + find_slot(problem, i, problem.alias_of[w])]
                if u >= 0:
                    target = storage[u]
            elif not pinned and problem.inplace_start[w] < problem.inplace_start[w + 1]:
                u = inplace_source(problem, w, i, slot_value, slot_start[p], storages)
                if u >= 0:
                    shared, target = True, storage[u]
                    storages.ended[storages.current[target]] = p
                    storages.current[target] = v
            if not shared:
                target = count
                storages.birth[target], storages.size[target] = p, problem.nbytes[t]
                storages.kind[target] = 1 if pinned else 2 if problem.fleeting[w] else 0
                storages.current[target] = v
                count += 1
            storage[v] = target
            if target >= 0:
                storages.epoch[v] = storages.current[target]
                # One more for being produced, given back when the node is done.
                pending[target] += value_reads[v] + 1
        for k in range(slot_start[p], slot_start[p + 1]):
            v = slot_value[k]
            if v >= 0 and storage[v] >= 0:
                pending[storage[v]] -= 1
                storages.last[storage[v]] = p
        for v in range(value_start[p], value_start[p + 1]):
            if storage[v] >= 0:
                pending[storage[v]] -= 1
    for v in range(len(storage)):
        if storage[v] >= 0:
            storages.lost[v] = storages.ended[storages.epoch[v]]
    return count


@leaf
def lifetimes(storages: Storages, length: int, death: Ints, held: Ints, change: Ints) -> None:
    """Fill death and ``held`` of every storage, and the change of live bytes at every position."""
    for s in range(len(death)):
        if storages.kind[s] == 2 and storages.last[s] < 0:
            death[s] = storages.birth[s] + 1
        elif storages.kind[s] == 1 or storages.last[s] < 0:
            death[s] = length
            held[s] = 1
        else:
            death[s] = storages.last[s] + 1
        change[storages.birth[s]] += storages.size[s]
        change[death[s]] -= storages.size[s]


@leaf
def total_bytes(
    problem: Arrays,
    sequence: Ints,
    slot_start: Ints,
    slot_value: Ints,
    change: Ints,
    gone: Ints,
    dynamic: Ints,
    total: Ints,
) -> None:
    """Fill the bytes at every position."""
    live = 0
    for p in range(len(sequence)):
        node = sequence[p]
        live += change[p]
        dynamic[p] = live + problem.inside[node]
        total[p] = dynamic[p] + problem.workspace[node]
        for k in range(slot_start[p], slot_start[p + 1]):
            t = problem.reads[problem.read_start[node] + k - slot_start[p]]
            missing = slot_value[k] < 0 and not problem.resident[t]
            if missing or (len(gone) > 0 and gone[t] < p):
                total[p] = IMPOSSIBLE


@leaf
def written_over(problem: Arrays, sequence: Ints, ran: Ints, gone: Ints) -> None:
    """Fill ``gone``, given ``ran`` full of the sequence's length, by node."""
    for p in range(len(sequence) - 1, -1, -1):
        ran[sequence[p]] = p
    for t in range(len(gone)):
        if problem.overwriter[t] >= 0:
            gone[t] = ran[problem.overwriter[t]]


@compiled
def evaluate(problem: Arrays, sequence: Ints) -> MemoryProfile:
    """The :class:`MemoryProfile` of ``sequence`` under a session without buffer reuse.

    Mirrors :mod:`memplan.simulate.allocation` for sequences in which nodes may stand several times.
    """
    length = len(sequence)
    slot_start = np.zeros(length + 1, np.int64)
    value_start = np.zeros(length + 1, np.int64)
    count_slots(problem, sequence, slot_start, value_start)
    values = value_start[length]
    slot_value = np.full(slot_start[length], NONE, np.int64)
    value_tensor, value_reads = np.zeros(values, np.int64), np.zeros(values, np.int64)
    latest = np.full(len(problem.nbytes), NONE, np.int64)
    resolve_reads(
        problem, sequence, slot_start, value_start, latest, slot_value, value_tensor, value_reads
    )
    storages = Storages(
        np.full(values, NONE, np.int64),
        np.full(values, length, np.int64),
        np.zeros(values, np.int64),
        np.zeros(values, np.int64),
        np.zeros(values, np.int64),
        np.full(values, NONE, np.int64),
        np.zeros(values, np.int64),
        np.zeros(values, np.int64),
        np.zeros(values, np.int64),
        np.full(values, length, np.int64),
    )
    count = assign_storages(
        problem,
        sequence,
        slot_start,
        slot_value,
        value_start,
        value_reads,
        np.zeros(len(problem.nbytes), np.bool_),
        storages,
    )
    death, held = np.zeros(count, np.int64), np.zeros(count, np.int64)
    change = np.zeros(length + 1, np.int64)
    lifetimes(storages, length, death, held, change)
    dynamic, total = np.zeros(length, np.int64), np.zeros(length, np.int64)
    gone = np.full(len(problem.overwriter), length, np.int64)
    written_over(problem, sequence, np.full(len(problem.cost), length, np.int64), gone)
    total_bytes(problem, sequence, slot_start, slot_value, change, gone, dynamic, total)
    return MemoryProfile(
        sequence,
        slot_start,
        slot_value,
        value_start,
        value_tensor,
        storages.of_value,
        value_reads,
        storages.lost,
        storages.birth[:count],
        death,
        storages.size[:count],
        held,
        gone,
        dynamic,
        total,
    )


def decide(problem: Problem, sequence: Ints) -> Decision:
    """The decision for a sequence: its exact peak, its cost, and whether it keeps the budget."""
    peak = int(evaluate(problem.arrays, sequence).total.max(initial=0))
    extra = float(problem.arrays.cost[sequence].sum()) - problem.base_cost
    return Decision(sequence, peak, max(0.0, extra), peak <= problem.budget)


@leaf
def over_budget(total: Ints, budget: int) -> int:
    """The sum of what is over ``budget``."""
    excess = 0
    for p in range(len(total)):
        excess += max(total[p] - budget, 0)
    return excess


@compiled
def excess_of(profile: MemoryProfile, budget: int) -> float:
    """Sum over positions of the bytes over budget."""
    return float(over_budget(profile.total, budget))
