"""The placement search, started again and again with other preferences until it finds an end."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.placing.branch import FOUND, STOPPED, search
from benchmarks.placing.state import Sections, Stack
from memplan.solver.problem import Ints

# Nodes of the shortest run. A prototype solved six public instances in 3.7 s with 800, in 11 s
# with 300 or 2000 (mean of five seeds).
_NODES = 800
# Slots of the table of failures: 8 MiB.
_TABLE = 1 << 20
# Depths beyond one per buffer: a gap that is left takes one too.
_SPARE_DEPTHS = 64


def find_below(
    lower: Ints, upper: Ints, size: Ints, capacity: int, seconds: float, seed: int
) -> tuple[int, Ints | None]:
    """Look for offsets with all buffers below ``capacity`` for ``seconds``.

    Runs are as long as Luby, Sinclair and Zuckerman's sequence says (Optimal speedup of Las Vegas
    algorithms, 1993). Given time enough the answer depends on ``seed`` only. ``lower`` must be
    ascending, sizes positive.

    Returns:
        Outcome (found, impossible or stopped) and the offsets.
    """
    first, last, count = cut(lower, upper)
    owner, members = _members(first, last)
    stack = _stack(len(size), np.bincount(owner, minlength=count))
    start = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=count))]).astype(np.int64)
    draw = np.random.default_rng(seed)
    started = time.perf_counter()
    shortest = max(_NODES, 2 * len(size))
    done = run = 0
    while True:
        order = np.lexsort((_preference(size, last - first, run, draw)[members], owner))
        sections = Sections(first, last, size, start, members[order], capacity)
        # Two searches that differ in how they choose sections take turns.
        limit = shortest * luby(run // 2 + 1)
        spent = time.perf_counter() - started
        if done:
            limit = min(limit, int(done * (seconds / spent - 1)))
        if limit < 1:
            return STOPPED, None
        outcome, depth, nodes = search(sections, stack, limit, run % 2 == 1)
        if outcome != STOPPED:
            return outcome, stack.bottom[depth].copy() if outcome == FOUND else None
        done += nodes
        run += 1


def cut(lower: Ints, upper: Ints) -> tuple[Ints, Ints, int]:
    """Lifetimes in sections: first, one behind the last, and how many sections there are.

    Between a start and the next end lies one largest set of buffers that are live together. Ends
    come before starts at the same time, for lifetimes are half open.
    """
    times = np.concatenate([lower, upper])
    starts = np.repeat([True, False], len(lower))
    order = np.lexsort((starts, times))
    opens = starts[order]
    # A section is where a start is followed by an end.
    closing = np.concatenate([opens[:-1] & ~opens[1:], [False]])
    behind = np.cumsum(closing)
    number = np.empty(len(times), np.int64)
    # A start belongs to the section that closes next, an end lies behind the one that closed last.
    number[order] = behind - closing
    return number[: len(lower)], number[len(lower) :], int(behind[-1])


def luby(k: int) -> int:
    """The ``k``-th number (from 1) of 1, 1, 2, 1, 1, 2, 4, 1, ..."""
    while True:
        bits = k.bit_length()
        if k == (1 << bits) - 1:
            return 1 << (bits - 1)
        k -= (1 << (bits - 1)) - 1


def _members(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Section and buffer of every pair in which the buffer is live."""
    width = last - first
    buffers = np.repeat(np.arange(len(first)), width)
    behind = np.cumsum(width) - width
    owner = np.arange(len(buffers)) - np.repeat(behind - first, width)
    return owner.astype(np.int64), buffers.astype(np.int64)


def _preference(size: Ints, width: Ints, run: int, draw: np.random.Generator) -> Ints:
    """Ranks by which branches are tried: by area, size and lifetime, then by mixtures at random."""
    log_size, log_width = np.log(size), np.log(width)
    if run < 3:
        score = (log_size + log_width, log_size, log_width)[run]
    else:
        share = draw.uniform()
        noise = draw.choice([0.05, 0.2, 0.5])
        score = share * log_size + (1 - share) * log_width + draw.normal(0, noise, len(size))
    rank = np.empty(len(size), np.int64)
    rank[np.argsort(-score, kind="stable")] = np.arange(len(size))
    return rank


def _stack(buffers: int, live: Ints) -> Stack:
    """An empty stack for so many buffers, given how many are live in each section."""
    depths, sections = buffers + buffers // 2 + _SPARE_DEPTHS, len(live)

    def table(*shape: int) -> Ints:
        return np.empty(shape, np.int64)

    return Stack(
        bottom=table(depths, buffers),
        floor=table(depths, sections),
        todo=table(depths, sections),
        placed=np.zeros(buffers, np.bool_),
        witness=table(sections),
        chosen=table(depths),
        section=table(depths),
        above=table(depths),
        span=table(depths, 2),
        key=np.empty(depths, np.uint64),
        branches=table(depths, int(live.max()) + 1),
        listed=table(depths),
        tried=table(depths),
        wall=table(2, sections),
        weight=np.zeros(sections),
        failed=np.zeros(_TABLE, np.uint64),
    )
