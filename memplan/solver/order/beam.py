"""Beam search over execution orders: a sequence put in an order that needs less memory.

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

from memplan.solver.evaluate import evaluate
from memplan.solver.jit import compiled, inner, leaf
from memplan.solver.order.window import Shorts, Window, open_window
from memplan.solver.problem import Arrays, Flags, Floats, Ints


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
def run_instance(window: Window, left: Shorts, live: int, j: int) -> tuple[int, int]:
    """Bytes while instance ``j`` runs, and live behind it. ``left`` is as before."""
    during = live + window.own[j]
    for g in range(window.made_start[j], window.made_start[j + 1]):
        during += window.size[g]
        live += window.size[g]
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
    window: Window,
    states: States,
    count: int,
    budget: int,
    noise: float,
    key: Ints,
    options: Options,
) -> int:
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
        np.zeros((width, count), np.int16),
        np.zeros((width, groups), np.int16),
        np.zeros((width, count), np.int64),
        np.zeros(width, np.int64),
        np.zeros(width, np.int64),
        np.zeros(width, np.int64),
        np.zeros(width, np.int64),
    )


@inner
def first_state(window: Window, states: States) -> None:
    """Nothing has run."""
    states.waits[0], states.left[0] = window.waits, window.reads_left
    ready = np.flatnonzero(window.waits == 0)
    states.ready[0, : len(ready)] = ready
    states.waiting[0] = len(ready)


@inner
def search_order(window: Window, budget: int, width: int, noise: float) -> Ints:
    """The instances in the best order found."""
    count = len(window.waits)
    old = new_states(width, count, len(window.size))
    new = new_states(width, count, len(window.size))
    first_state(window, old)
    key = np.random.randint(0, 1 << 62, count)
    room = min(width * count, 200 * width + count)
    options = Options(
        np.zeros(room, np.int64),
        np.zeros(room, np.int64),
        np.zeros(room, np.int64),
        np.zeros(room, np.int64),
        np.zeros(room),
        np.zeros(room, np.int64),
    )
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
    problem: Arrays, sequence: Ints, movable: Flags, budget: int, width: int, noise: float
) -> Ints:
    """``sequence`` in the order that a beam of ``width`` finds.

    Not necessarily better: in-place outputs are estimated, so the caller evaluates. ``noise``
    (0..1) scales random factors on live bytes.
    """
    window = open_window(problem, evaluate(problem, sequence), movable)
    return sequence[search_order(window, budget, width, noise)]
