"""Compiled pruning: take out every recomputation without which the budget still holds."""

from __future__ import annotations

import numpy as np

from memplan.solver.evaluate import MemoryProfile, evaluate
from memplan.solver.index import Index, build_index
from memplan.solver.jit import compiled, inner, leaf
from memplan.solver.problem import Arrays, Flags, Ints
from memplan.solver.search.move_candidates import clone_positions, removal_change, unread_positions
from memplan.solver.search.repair import without

# Recomputations taken out before one evaluation: one per so many positions, and at most so many.
_APART, _TOGETHER = 300, 64


@inner
def drop_unread(
    problem: Arrays, profile: MemoryProfile, original: Flags, protected: Flags
) -> MemoryProfile:
    """Take out recomputations that nobody reads."""
    while True:
        positions = free_clones(profile.sequence, original, protected)
        dead = unread_positions(profile, positions)
        if len(dead) == 0:
            return profile
        profile = evaluate(problem, without(profile.sequence, dead))


@compiled
def free_clones(sequence: Ints, original: Flags, protected: Flags) -> Ints:
    """Positions of recomputations that may be taken out."""
    positions = clone_positions(sequence, original)
    count = 0
    for p in positions:
        if not protected[sequence[p]]:
            positions[count] = p
            count += 1
    return positions[:count].copy()


@leaf
def renumber(pending: Ints, first: int, positions: Ints) -> None:
    """Adapt the positions from ``first`` on to the removal of ``positions``."""
    for k in range(first, len(pending)):
        before = 0
        for position in positions:
            before += position < pending[k]
        pending[k] -= before


@leaf
def choose_removals(
    problem: Arrays,
    profile: MemoryProfile,
    index: Index,
    limit: int,
    pending: Ints,
    first: int,
    chosen: Ints,
) -> tuple[int, int]:
    """Fill ``chosen`` with pending positions that seem to be superfluous.

    Returns how many, and how far ``pending`` has been looked at.
    """
    count, k = 0 * first, first
    while k < len(pending) and count < len(chosen):
        if removal_change(problem, profile, index, limit, pending[k]) <= 0:
            chosen[count] = pending[k]
            count += 1
        k += 1
    return count, k


@inner
def removed(
    problem: Arrays, profile: MemoryProfile, chosen: Ints, limit: int
) -> tuple[MemoryProfile, Ints]:
    """Take out the ``chosen`` positions, or as many as ``limit`` allows: halves of those that do
    not go together are tried one after the other. Also returns the positions that went."""
    gone = np.zeros(0, np.int64)
    starts, ends = np.zeros(len(chosen) + 1, np.int64), np.zeros(len(chosen) + 1, np.int64)
    ends[0], waiting = len(chosen), 1
    best = profile
    while waiting > 0:
        waiting -= 1
        lo, hi = starts[waiting], ends[waiting]
        attempt = np.zeros(len(gone) + hi - lo, np.int64)
        attempt[: len(gone)] = gone
        attempt[len(gone) :] = chosen[lo:hi]
        shorter = evaluate(problem, without(profile.sequence, attempt))
        if shorter.total.max() <= limit:
            best, gone = shorter, attempt
        elif hi - lo > 1:
            middle = (lo + hi) // 2
            starts[waiting], ends[waiting] = middle, hi
            starts[waiting + 1], ends[waiting + 1] = lo, middle
            waiting += 2
    return best, gone


@compiled
def prune(
    problem: Arrays,
    sequence: Ints,
    original: Flags,
    protected: Flags,
    budget: int,
    noise: float,
    halt: Flags,
) -> Ints:
    """Remove recomputations that the budget does not need, costliest first (noise: roughly).

    ``halt``: one flag, which another thread sets where nobody waits any more.
    """
    profile = evaluate(problem, sequence)
    limit = max(budget, profile.total.max())
    smaller = drop_unread(problem, profile, original, protected)
    if smaller.total.max() <= limit:
        profile = smaller
    chosen = np.zeros(max(1, min(_TOGETHER, len(sequence) // _APART)), np.int64)
    improved = True
    while improved and not halt[0]:
        improved = False
        index = build_index(problem, profile)
        pending = free_clones(profile.sequence, original, protected)
        weight = problem.cost[profile.sequence[pending]]
        if noise > 0:
            weight = weight * (1.0 + noise * np.random.random(len(weight)))
        pending = pending[np.argsort(-weight, kind="mergesort")]
        k = 0 * limit
        while k < len(pending) and not halt[0]:
            count, k = choose_removals(problem, profile, index, limit, pending, k, chosen)
            if count == 0:
                continue
            profile, gone = removed(problem, profile, chosen[:count], limit)
            if len(gone) > 0:
                renumber(pending, k, gone)
                index = build_index(problem, profile)
                improved = True
        smaller = drop_unread(problem, profile, original, protected)
        if smaller.total.max() <= limit:
            profile = smaller
    return profile.sequence
