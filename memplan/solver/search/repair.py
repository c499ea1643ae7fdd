"""Compiled repair: evict greedily until a sequence fits.

Moves are those of :mod:`memplan.solver.search.moves`, with optional noise on prices and scores.
"""

from __future__ import annotations

import numpy as np

from memplan.solver.evaluate import MemoryProfile, evaluate, excess_of
from memplan.solver.jit import compiled, inner, leaf
from memplan.solver.problem import NONE, Arrays, Flags, Floats, Ints
from memplan.solver.search.move_candidates import (
    Moves,
    enumerate_moves,
    replaced_positions,
)

LONGEST_CLOSURE = 256
# Above this length several moves are taken per round: one at a time would re-evaluate too often.
BATCH_LENGTH = 3000


@compiled
def cost_of(problem: Arrays, sequence: Ints) -> float:
    """Seconds of a sequence."""
    return seconds_of(problem.cost, sequence)


@leaf
def seconds_of(cost: Floats, sequence: Ints) -> float:
    """The sum of ``cost`` over ``sequence``."""
    seconds = 0.0
    for p in range(len(sequence)):
        seconds += cost[sequence[p]]
    return seconds


@inner
def insert_batch(problem: Arrays, sequence: Ints, moves: Moves, chosen: Ints) -> Ints:
    """``sequence`` with the nodes of several moves inserted, each before its position.

    Nodes that several moves insert at one place stand there once, in original order.
    """
    count = moves.used[chosen].sum()
    nodes, places = np.empty(count, np.int64), np.empty(count, np.int64)
    list_nodes(moves, chosen, nodes, places)
    order = np.argsort(places, kind="mergesort")
    result = np.empty(len(sequence) + count, np.int64)
    length = write_batch(problem, sequence, nodes[order], places[order], result)
    return result[:length]


@leaf
def list_nodes(moves: Moves, chosen: Ints, nodes: Ints, places: Ints) -> None:
    """Fill the nodes of the moves ``chosen``, and where each of them goes."""
    filled = 0
    for move in chosen:
        for k in range(moves.start[move], moves.start[move] + moves.used[move]):
            nodes[filled], places[filled] = moves.nodes[k], moves.places[k]
            filled += 1


@leaf
def write_batch(problem: Arrays, sequence: Ints, nodes: Ints, places: Ints, result: Ints) -> int:
    """Write ``sequence`` with the ``nodes`` before their ``places``, which ascend; its length."""
    length, first, at = 0 * len(nodes), 0, NONE
    previous = length
    for k in range(len(nodes)):
        if places[k] != at:
            at = places[k]
            for p in range(previous, at):
                result[length] = sequence[p]
                length += 1
            previous, first = at, length
        p = length
        while p > first and problem.rank[result[p - 1]] > problem.rank[nodes[k]]:
            p -= 1
        if p > first and result[p - 1] == nodes[k]:
            continue
        for m in range(length, p, -1):
            result[m] = result[m - 1]
        result[p] = nodes[k]
        length += 1
    for p in range(previous, len(sequence)):
        result[length] = sequence[p]
        length += 1
    return length


@inner
def without(sequence: Ints, positions: Ints) -> Ints:
    """``sequence`` without the instances at ``positions``."""
    keep = np.ones(len(sequence), np.bool_)
    keep[positions] = False
    return sequence[keep]


@inner
def evaluate_moved(problem: Arrays, sequence: Ints, movable: Flags) -> MemoryProfile:
    """Evaluate, after taking out instances that a later one has replaced."""
    profile = evaluate(problem, sequence)
    while True:
        gone = replaced_positions(profile, movable)
        if len(gone) == 0:
            return profile
        profile = evaluate(problem, without(profile.sequence, gone))


@inner
def pick_step(profile: MemoryProfile, budget: int, mode: int, failures: int) -> int:
    """A position over budget to work on: the worst, the first, or a random one after failures."""
    over = np.flatnonzero(profile.total > budget)
    if failures > 0 or (mode == 1 and np.random.random() < 0.5):
        return int(over[np.random.randint(len(over))])
    if mode == 2:
        return int(over[0])
    return int(profile.total.argmax())


@inner
def choose_batch(profile: MemoryProfile, moves: Moves, need: int) -> Ints:
    """The best moves until together they cover ``need`` bytes."""
    limit = max(4, len(profile.sequence) // 200)
    count = 0
    for k in range(len(moves.at)):
        if count >= limit:
            break
        count += 1
        need -= profile.size[moves.storage[k]]
        if need <= 0:
            break
    return np.arange(count)


@compiled
def repair(
    problem: Arrays,
    sequence: Ints,
    movable: Flags,
    price: Floats,
    budget: int,
    depth: int,
    noise: float,
    mode: int,
    give_up: int,
    cost_limit: float,
    rounds: int,
) -> tuple[Ints, float]:
    """Evict until ``sequence`` fits; the sequence reached and its remaining excess.

    ``noise`` scales random factors on scores. Stops early when the cost passes ``cost_limit``,
    after ``give_up`` failures in a row, or after ``rounds`` moves.
    """
    profile = evaluate(problem, sequence)
    excess = excess_of(profile, budget)
    nothing = 0 * rounds  # not a literal: see score_move
    failures = nothing
    for _ in range(rounds):
        if excess <= 0 or failures > give_up or cost_of(problem, profile.sequence) > cost_limit:
            break
        step = pick_step(profile, budget, mode, failures)
        moves = enumerate_moves(
            problem, profile, movable, price, budget, step, depth, LONGEST_CLOSURE, noise
        )
        taken = False
        if len(profile.sequence) > BATCH_LENGTH and len(moves.at) > 1:
            batch = choose_batch(profile, moves, profile.total[step] - budget)
            if len(batch) > 1:
                candidate = evaluate_moved(
                    problem, insert_batch(problem, profile.sequence, moves, batch), movable
                )
                after = excess_of(candidate, budget)
                if after < excess:
                    profile, excess, taken = candidate, after, True
        if not taken:
            for k in range(min(6, len(moves.at))):
                one = np.arange(k, k + 1)
                candidate = evaluate_moved(
                    problem, insert_batch(problem, profile.sequence, moves, one), movable
                )
                after = excess_of(candidate, budget)
                if after < excess:
                    profile, excess, taken = candidate, after, True
                    break
        failures = nothing if taken else failures + 1
    return profile.sequence, excess
