"""Compiled large-neighbourhood search: take recomputations out, repair differently, keep if better.

Shaw, "Using constraint programming and local search methods to solve vehicle routing problems",
CP 1998 (the scheme); the neighbourhoods are ours.
"""

from __future__ import annotations

import numpy as np

from memplan.solver.jit import compiled, inner, leaf
from memplan.solver.order.local import reorder
from memplan.solver.problem import Arrays, Flags, Floats, Ints
from memplan.solver.search.params import RoundParams
from memplan.solver.search.prune_sequence import free_clones, prune
from memplan.solver.search.repair import cost_of, repair, seconds_of

# Gains below this share of the step's time are rounding.
_ROUNDING = 1e-12
# Node moves in a round that makes some: at least so many, and up to so many more.
_LEAST_MOVES, _MORE_MOVES = 10, 60


@inner
def ruin(problem: Arrays, sequence: Ints, clones: Ints, params: RoundParams) -> Ints:
    """``sequence`` without some of its recomputations, chosen in one of four ways."""
    kill = np.zeros(len(sequence), np.bool_)
    count = len(clones)
    draw = np.random.random()
    if draw < params.scattered:
        for _ in range(1 + np.random.randint(min(count, 6))):
            kill[clones[np.random.randint(count)]] = True
    elif draw < params.scattered + params.stretch:
        first = np.random.randint(count)
        wide = 2 + np.random.randint(min(max(2, count // 3), 24))
        for k in range(first, min(count, first + wide)):
            if np.random.random() < 0.8:
                kill[clones[k]] = True
    elif draw < params.scattered + params.stretch + params.thinned:
        # More than half of what a repair may do is not put right by the other half.
        share = min(0.03 + 0.15 * np.random.random(), 0.5 * params.moves / count)
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
def perturbed(price: Floats, noise: float) -> Floats:
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
    price: Floats,
    budget: int,
    iterations: int,
    order_share: float,
    heat: float,
    params: RoundParams,
    halt: Flags,
) -> tuple[Ints, Ints, int]:
    """``iterations`` rounds of ruin and repair from a feasible sequence, fewer where another thread
    sets the one flag ``halt``.

    ``order_share``: how often nodes are moved too. ``heat``: temperature of the acceptance test
    relative to the extra cost. Returns the current and the best sequence and the number of rounds
    that improved the best.
    """
    base = seconds_of(problem.cost, np.flatnonzero(original))
    cost, lowest = cost_of(problem, current), cost_of(problem, best)
    gains = 0
    for _ in range(iterations):
        clones = free_clones(current, original, protected)
        if len(clones) == 0 or halt[0]:
            break
        temperature = max(1e-9 * base, heat * (lowest - base))
        dearest = cost + params.window * temperature
        candidate = ruin(problem, current, clones, params)
        if np.random.random() < order_share:
            moves = _LEAST_MOVES + np.random.randint(_MORE_MOVES)
            candidate, _ = reorder(problem, candidate, movable, budget, moves)
        noise = 0.0 if np.random.random() < params.exact else params.noise * np.random.random()
        scattered = noise > 0.0 and np.random.random() >= params.true_prices
        prices = perturbed(price, noise) if scattered else price
        depth = params.depths[np.random.randint(len(params.depths))]
        candidate, excess = repair(
            problem,
            candidate,
            movable,
            prices,
            budget,
            depth,
            noise,
            np.random.randint(3),
            params.give_up,
            dearest,
            params.moves,
        )
        if excess > 0 and cost_of(problem, candidate) <= dearest:
            # What is missing may be a matter of where the recomputations stand.
            candidate, excess = reorder(problem, candidate, movable, budget, params.last_moves)
        if excess > 0:
            continue
        candidate = prune(problem, candidate, original, protected, budget, noise, halt)
        new = cost_of(problem, candidate)
        if new <= cost or np.random.random() < np.exp((cost - new) / temperature):
            current, cost = candidate, new
            if cost < lowest - _ROUNDING * base:
                best, lowest, gains = current, cost, gains + 1
        if params.back_every > 0 and np.random.randint(params.back_every) == 0:
            current, cost = best, lowest
    return current, best, gains
