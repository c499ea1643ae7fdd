"""Compiled large-neighbourhood search: take recomputations out, repair differently, keep if better.

Shaw, "Using constraint programming and local search methods to solve vehicle routing problems",
CP 1998 (the scheme); the neighbourhoods are ours.
"""

from __future__ import annotations

import numpy as np

from memplan.solver.jit import compiled, inner, leaf
from memplan.solver.order.local import reorder
from memplan.solver.problem import Arrays, Flags, Ints
from memplan.solver.search.prune import free_clones, prune
from memplan.solver.search.repair import cost_of, repair, seconds_of

_DEPTHS = (2, 4, 14, 64)
_LAST_MOVES = 40


@inner
def ruin(problem: Arrays, sequence: Ints, clones: Ints) -> Ints:
    """``sequence`` without some of its recomputations."""
    kill = np.zeros(len(sequence), np.bool_)
    count = len(clones)
    draw = np.random.random()
    if draw < 0.35:
        for _ in range(1 + np.random.randint(min(count, 6))):
            kill[clones[np.random.randint(count)]] = True
    elif draw < 0.75:
        first = np.random.randint(count)
        wide = 2 + np.random.randint(min(max(2, count // 3), 24))
        for k in range(first, min(count, first + wide)):
            if np.random.random() < 0.8:
                kill[clones[k]] = True
    elif draw < 0.9:
        share = 0.03 + 0.15 * np.random.random()
        for p in clones:
            if np.random.random() < share:
                kill[p] = True
    else:
        node = sequence[clones[np.random.randint(count)]]
        for p in clones:
            if sequence[p] == node or np.random.random() < 0.02:
                kill[p] = True
    return drop_orphans(problem, sequence[~kill])


@compiled
def drop_orphans(problem: Arrays, sequence: Ints) -> Ints:
    """``sequence`` without instances that read what nothing makes any more.

    Only rebuild rules can lose their sources: every other node keeps its first instance.
    """
    keep = np.ones(len(sequence), np.bool_)
    mark_orphans(problem, sequence, problem.resident.copy(), keep)
    return sequence[keep]


@leaf
def mark_orphans(problem: Arrays, sequence: Ints, made: Flags, keep: Flags) -> None:
    """Take the mark ``keep`` off instances that read what is not ``made`` before."""
    for p in range(len(sequence)):
        node = sequence[p]
        for r in range(problem.read_start[node], problem.read_start[node + 1]):
            if not made[problem.reads[r]]:
                keep[p] = False
        if keep[p]:
            for w in range(problem.write_start[node], problem.write_start[node + 1]):
                made[problem.writes[w]] = True


@inner
def perturbed(price: np.ndarray, noise: float) -> np.ndarray:
    """Prices with random factors between exp(-1.5 noise) and exp(1.5 noise)."""
    return price * np.exp(noise * 1.5 * (2.0 * np.random.random(len(price)) - 1.0))


@compiled
def improve(
    problem: Arrays,
    current: Ints,
    best: Ints,
    original: Flags,
    protected: Flags,
    movable: Flags,
    price: np.ndarray,
    budget: int,
    iterations: int,
    order_share: float,
    heat: float,
    give_up: int,
    rounds: int,
) -> tuple[Ints, Ints, int]:
    """``iterations`` rounds of ruin and repair from a feasible sequence.

    ``order_share``: how often nodes are moved too. ``heat``: temperature of the acceptance test
    relative to the extra cost. ``give_up``, ``rounds``: as for repair. Returns the current and the
    best sequence and the number of rounds that improved the best.
    """
    base = seconds_of(problem.cost, np.flatnonzero(original))
    cost, lowest = cost_of(problem, current), cost_of(problem, best)
    gains = 0
    for _ in range(iterations):
        clones = free_clones(current, original, protected)
        if len(clones) == 0:
            break
        temperature = max(1e-9 * base, heat * (lowest - base))
        candidate = ruin(problem, current, clones)
        if np.random.random() < order_share:
            candidate, _ = reorder(problem, candidate, movable, budget, 10 + np.random.randint(60))
        noise = 0.0 if np.random.random() < 0.3 else 0.5 * np.random.random()
        prices = price if noise == 0.0 or np.random.random() < 0.4 else perturbed(price, noise)
        depth = _DEPTHS[np.random.randint(4)]
        candidate, excess = repair(
            problem,
            candidate,
            movable,
            prices,
            budget,
            depth,
            noise,
            np.random.randint(3),
            give_up,
            cost + 3 * temperature,
            rounds,
        )
        if excess > 0 and cost_of(problem, candidate) <= cost + 3 * temperature:
            # What is missing may be a matter of where the recomputations stand.
            candidate, excess = reorder(problem, candidate, movable, budget, _LAST_MOVES)
        if excess > 0:
            continue
        candidate = prune(problem, candidate, original, protected, budget, noise)
        new = cost_of(problem, candidate)
        if new <= cost or np.random.random() < np.exp((cost - new) / temperature):
            current, cost = candidate, new
            if cost < lowest - 1e-12 * base:
                best, lowest, gains = current, cost, gains + 1
        if np.random.randint(200) == 0:
            current, cost = best, lowest
    return current, best, gains
