"""Greedy eviction with late recomputation, then pruning.

At the worst position over budget, take the move that saves most excess per second of
recomputation; repeat until nothing is over budget. Then take out every recomputation without which
the budget still holds, costliest first.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from memplan.planning.candidates import (
    Moves,
    clone_positions,
    enumerate_moves,
    removal_change,
    unread_positions,
)
from memplan.planning.evaluate import Profile, evaluate
from memplan.planning.moves import build_index
from memplan.planning.problem import NONE, Arrays, Decision, Floats, Ints, Problem

Progress = Callable[[int], None]

# Above this length several moves are taken per round: one at a time would re-evaluate too often.
_BATCH_LENGTH = 4000
_LONGEST_CLOSURE = 256
_PRUNING_PASSES = 3


@dataclass(frozen=True, slots=True)
class GreedyOptions:
    """``depths``: closure depths tried in turn, widening when no move helps."""

    depths: tuple[int, ...] = (4, 14, 64)
    give_up_after: int = 40


def solve(
    problem: Problem,
    time_limit: float = float("inf"),
    options: GreedyOptions | None = None,
    progress: Progress | None = None,
) -> Decision:
    """A sequence within ``problem.budget``, or the best one found (``feasible`` False).

    ``time_limit`` in seconds bounds the search; what was found by then is returned.
    """
    options = options or GreedyOptions()
    warm_up()
    deadline = time.perf_counter() + time_limit
    best: Decision | None = None
    for depth in options.depths:
        if best is not None and time.perf_counter() > deadline:
            break
        search = _Greedy(problem, depth, options.give_up_after, progress, deadline)
        search.run()
        decision = search.decision()
        if best is None or _better(decision, best):
            best = decision
        if decision.feasible and depth != options.depths[0]:
            break
    assert best is not None
    return best


def warm_up() -> None:
    """Load (or, once per version, compile) the machine code, so that no time limit pays for it."""
    arrays = Arrays(
        read_start=np.array([0, 0, 1]), reads=np.array([0]),
        write_start=np.array([0, 1, 2]), writes=np.array([0, 1]),
        alias_of=np.array([NONE, NONE]), inplace_start=np.array([0, 0, 0]),
        inplace_of=np.zeros(0, np.int64), droppable=np.zeros(2, np.bool_),
        nbytes=np.array([1, 1]), alike=np.array([0, 0]), resident=np.zeros(2, np.bool_),
        pinned=np.zeros(2, np.bool_), maker=np.array([0, 1]), rank=np.array([0, 1]),
        cost=np.ones(2), workspace=np.zeros(2, np.int64), inside=np.zeros(2, np.int64),
    )  # fmt: skip
    order = np.array([0, 1])
    profile = evaluate(arrays, order)
    index = build_index(arrays, profile, 1)
    enumerate_moves(arrays, profile, index, arrays.cost, 1, 0, 1, 4)
    removal_change(arrays, profile, index, 1, 1)
    unread_positions(profile, clone_positions(order, np.ones(2, np.bool_)))


def _better(first: Decision, second: Decision) -> bool:
    if first.feasible != second.feasible:
        return first.feasible
    if first.feasible:
        return first.extra_cost < second.extra_cost
    return first.peak < second.peak


class _Greedy:
    """One run at one closure depth."""

    def __init__(
        self,
        problem: Problem,
        depth: int,
        give_up_after: int,
        progress: Progress | None,
        deadline: float,
    ) -> None:
        self.deadline = deadline
        self.problem = problem
        self.arrays = problem.arrays
        self.budget = problem.budget
        self.depth = depth
        self.give_up_after = give_up_after
        self.progress = progress
        # A free node still has a price, so that of two free moves the smaller one wins.
        self.price: Floats = problem.arrays.cost + max(problem.base_cost, 1e-12) * 1e-9
        self.original = np.zeros(len(problem.arrays.cost), np.bool_)
        self.original[problem.order] = True
        self.profile: Profile = evaluate(self.arrays, problem.start)
        self.banned: set[tuple[int, int, int]] = set()

    def run(self) -> None:
        """Evict until the budget holds or nothing helps, then prune."""
        failures = 0
        while self._excess(self.profile) > 0 and failures < self.give_up_after:
            if time.perf_counter() > self.deadline:
                break
            step = self._worst_step(failures)
            if step is None:
                break
            index = build_index(self.arrays, self.profile, self.budget)
            moves = enumerate_moves(
                self.arrays,
                self.profile,
                index,
                self.price,
                self.budget,
                step,
                self.depth,
                _LONGEST_CLOSURE,
            )
            if self._take(moves, step):
                failures = 0
            else:
                failures += 1
            if self.progress is not None:
                self.progress(int(self.profile.total.max()))
        self._prune()

    def decision(self) -> Decision:
        """The present sequence as an answer."""
        peak = int(self.profile.total.max(initial=0))
        cost = float(self.arrays.cost[self.profile.sequence].sum()) - self.problem.base_cost
        return Decision(self.profile.sequence, peak, cost, peak <= self.budget)

    def _excess(self, profile: Profile) -> float:
        return float(np.maximum(profile.total - self.budget, 0).sum())

    def _worst_step(self, rank: int) -> int | None:
        """The position furthest over budget; after failures, the next peaks in turn."""
        total = self.profile.total
        if rank == 0:
            return int(total.argmax())
        over = np.flatnonzero(total > self.budget)
        if rank > len(over):
            return None
        # Spread the attempts over the whole stretch instead of around one summit.
        return int(
            over[
                np.argsort(-total[over], kind="stable")[:: max(1, len(over) // 40)][
                    (rank - 1) % max(1, len(over[:: max(1, len(over) // 40)]))
                ]
            ]
        )

    def _take(self, moves: Moves, step: int) -> bool:
        """Apply the best move (or a batch) that lowers the exact excess."""
        order = np.argsort(-moves.score, kind="stable")
        before = self._excess(self.profile)
        if len(self.profile.sequence) > _BATCH_LENGTH and len(order) > 1:
            batch = self._batch(moves, order, step)
            if len(batch) > 1 and self._try(moves, batch, before):
                return True
        tried = 0
        for k in order:
            key = self._key(moves, int(k))
            if key in self.banned:
                continue
            if self._try(moves, [int(k)], before):
                return True
            self.banned.add(key)
            tried += 1
            if tried >= 8:
                break
        return False

    def _key(self, moves: Moves, k: int) -> tuple[int, int, int]:
        """A move by what it recomputes and for whom; positions shift from round to round."""
        nodes = moves.nodes[moves.start[k] : moves.start[k + 1]]
        reader = int(self.profile.sequence[moves.at[k]])
        return reader, len(nodes), hash(nodes.tobytes())

    def _batch(self, moves: Moves, order: Ints, step: int) -> list[int]:
        """The best moves, until together they cover the excess at the worst step."""
        need = int(self.profile.total[step]) - self.budget
        limit = max(4, len(self.profile.sequence) // 200)
        chosen: list[int] = []
        for k in order:
            if moves.score[k] < 0.3 * moves.score[order[0]] or len(chosen) >= limit:
                break
            chosen.append(int(k))
            need -= int(self.profile.size[moves.storage[k]])
            if need <= 0:
                break
        return chosen

    def _try(self, moves: Moves, chosen: list[int], before: float) -> bool:
        sequence = insert_moves(self.profile.sequence, moves, chosen, self.arrays.rank)
        profile = evaluate(self.arrays, sequence)
        if self._excess(profile) >= before:
            return False
        self.profile = profile
        return True

    def _prune(self) -> None:
        """Remove every recomputation that the budget does not need, costliest first."""
        limit = max(self.budget, int(self.profile.total.max(initial=0)))
        self._drop_unread(limit)
        for _ in range(_PRUNING_PASSES):
            if not self._prune_once(limit):
                return

    def _prune_once(self, limit: int) -> bool:
        """One pass over all recomputations; whether any was removed."""
        index = build_index(self.arrays, self.profile, self.budget)
        positions = self._clones()
        cost = self.arrays.cost[self.profile.sequence[positions]]
        pending = [int(p) for p in positions[np.argsort(-cost, kind="stable")]]
        removed_any = False
        for k, position in enumerate(pending):
            if position < 0:
                continue
            if time.perf_counter() > self.deadline:
                return False
            if removal_change(self.arrays, self.profile, index, self.budget, position) > 0:
                continue
            gone = self._remove(position, limit)
            if gone:
                removed_any = True
                index = build_index(self.arrays, self.profile, self.budget)
                pending[k + 1 :] = _shifted(pending[k + 1 :], gone)
        return removed_any

    def _clones(self) -> Ints:
        found = clone_positions(self.profile.sequence, self.original)
        return found[~self.problem.protected[self.profile.sequence[found]]]

    def _remove(self, position: int, limit: int) -> list[int]:
        """Take out one recomputation and what only it read; the removed positions, if it fits."""
        removed = [position]
        sequence = np.delete(self.profile.sequence, position)
        profile = evaluate(self.arrays, sequence)
        if int(profile.total.max()) > limit:
            return []
        self.profile = profile
        dead = self._drop_unread(limit)
        # Positions of the second removal are relative to the sequence without the first.
        removed += [p + (p >= position) for p in dead]
        return removed

    def _drop_unread(self, limit: int) -> list[int]:
        """Take out recomputations that nobody reads; their positions in the present sequence."""
        length = len(self.profile.sequence)
        alive = np.arange(length)
        while True:
            profile = self.profile
            dead = unread_positions(profile, self._clones())
            if not len(dead):
                break
            shorter = evaluate(self.arrays, np.delete(profile.sequence, dead))
            if int(shorter.total.max()) > limit:
                break
            self.profile = shorter
            alive = np.delete(alive, dead)
        gone = np.setdiff1d(np.arange(length), alive)
        return [int(p) for p in gone]


def _shifted(positions: list[int], gone: list[int]) -> list[int]:
    """Positions after the removal of ``gone``; -1 for those that are gone themselves."""
    ordered = sorted(gone)
    removed = set(ordered)
    return [-1 if p < 0 or p in removed else p - bisect_left(ordered, p) for p in positions]


def insert_moves(sequence: Ints, moves: Moves, chosen: list[int], rank: Ints) -> Ints:
    """``sequence`` with the nodes of the chosen moves inserted, each before its position."""
    at: dict[int, set[int]] = {}
    for k in chosen:
        nodes = moves.nodes[moves.start[k] : moves.start[k + 1]]
        at.setdefault(int(moves.at[k]), set()).update(int(node) for node in nodes)
    pieces: list[Ints] = []
    previous = 0
    for position in sorted(at):
        pieces.append(sequence[previous:position])
        ordered = sorted(at[position], key=lambda node: int(rank[node]))
        pieces.append(np.asarray(ordered, dtype=np.int64))
        previous = position
    pieces.append(sequence[previous:])
    return np.concatenate(pieces)
