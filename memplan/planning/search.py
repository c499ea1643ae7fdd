"""The search: greedy at several depths, then large-neighbourhood search, anytime.

Everything that runs often is compiled; this module only decides what to run next and when to stop.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from memplan.planning.beam import resequence
from memplan.planning.evaluate import evaluate
from memplan.planning.neighbourhood import improve, seed_random
from memplan.planning.ordering import reorder, settle
from memplan.planning.problem import NONE, Arrays, Decision, Flags, Floats, Ints, Problem
from memplan.planning.repair import cost_of, excess_of, prune, repair

Progress = Callable[[int, float], None]
"""Called with the present peak (dynamic bytes and workspace) and the extra cost as a fraction."""

# Moves per call of the compiled repair, between looks at the clock.
_PORTION = 50
# Failed attempts in a row after which a repair is stuck.
_GIVE_UP = 10
# Rounds of order moves without gain after which that is given up.
_IDLE_ROUNDS = 5
# Longer sequences get no order made anew; the beam would be too narrow to be any good.
_LONGEST_BEAM = 6000
# Seconds that must be left for a wide beam, and the width otherwise.
_BEAM_NEEDS, _COUNTED_WIDTH = 2.0, 16
# Restarts after which an infeasible problem is given up, time limit or not.
_IDLE_ATTEMPTS = 300
# The refinement ends when so many rounds, or this share of its time, brought nothing.
_IDLE_ITERATIONS = 5000
_IDLE_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """``order``: whether nodes may be moved. ``iterations``: stop after so many rounds of the
    large-neighbourhood search (0: only the time limit counts); results then depend on the seed
    alone. ``begin``: a feasible sequence to go on from.
    """

    order: bool = True
    seed: int = 0
    iterations: int = 0
    depths: tuple[int, ...] = (2, 4, 14, 64)
    begin: Ints | None = None


def solve(
    problem: Problem,
    time_limit: float,
    options: SearchOptions | None = None,
    progress: Progress | None = None,
    enough: Callable[[float], bool] | None = None,
) -> Decision:
    """The best sequence found within ``time_limit`` seconds.

    Args:
        problem: what to solve.
        time_limit: seconds, compilation not counted.
        options: see :class:`SearchOptions`.
        progress: told of improvements.
        enough: given the best extra cost in seconds, says whether to stop (a bound is reached).
    """
    return _Search(problem, time_limit, options or SearchOptions(), progress, enough).run()


def warm_up() -> None:
    """Load (or, once per version, compile) the machine code, so that no time limit pays for it."""
    arrays = Arrays(
        read_start=np.array([0, 0, 1, 3]), reads=np.array([0, 0, 1]),
        write_start=np.array([0, 1, 2, 3]), writes=np.array([0, 1, 2]),
        alias_of=np.array([NONE] * 3), inplace_start=np.array([0] * 4),
        inplace_of=np.zeros(0, np.int64), droppable=np.zeros(3, np.bool_),
        fleeting=np.ones(3, np.bool_), nbytes=np.array([2, 1, 1]), alike=np.array([0, 1, 1]),
        resident=np.zeros(3, np.bool_), pinned=np.zeros(3, np.bool_), eager=np.zeros(3, np.bool_),
        maker=np.array([0, 1, 2]),
        rank=np.array([0, 1, 2]), cost=np.ones(3), workspace=np.array([0, 2, 0]),
        inside=np.zeros(3, np.int64),
    )  # fmt: skip
    order, flags = np.array([0, 1, 2]), np.ones(3, np.bool_)
    problem = Problem(arrays, order, 4, order, ~flags, flags)
    solve(problem, 0.0, SearchOptions(iterations=1))
    improve(arrays, order, order, flags, ~flags, flags, arrays.cost, 4, 0, 0.0, 0.0, 3, 400)


class _Search:
    """State of one search."""

    def __init__(
        self,
        problem: Problem,
        time_limit: float,
        options: SearchOptions,
        progress: Progress | None,
        enough: Callable[[float], bool] | None,
    ) -> None:
        self.problem, self.arrays, self.budget = problem, problem.arrays, problem.budget
        self.options, self.progress, self.enough = options, progress, enough
        self.random = np.random.default_rng(options.seed)
        self.original: Flags = np.zeros(len(self.arrays.cost), np.bool_)
        self.original[problem.order] = True
        self.movable: Flags = problem.movable & options.order
        # A free node still has a price, so that of two free moves the smaller one wins.
        self.price: Floats = self.arrays.cost + max(problem.base_cost, 1e-12) * 1e-9
        self.best: Ints | None = None
        self.fallback: Ints = problem.start
        self.deadline = time.perf_counter() + time_limit
        self.started = time.perf_counter()

    def run(self) -> Decision:
        """Greedy from the given order, then from an improved order, then the neighbourhoods."""
        seed_random(self.options.seed)
        if self._excess(self.problem.start) <= 0:
            return self._decision(self.problem.start)
        if self.options.begin is not None:
            self._offer(self.options.begin, self._excess(self.options.begin))
        else:
            self._construct(self.problem.start)
            if self.options.order and not self._stop():
                self._construct_reordered()
        if self.best is None:
            self._struggle()
        if self.best is not None:
            self._refine()
        if self.best is not None:
            return self._decision(self.best)
        # The least summed excess need not be the lowest peak.
        found = [self._decision(s) for s in (self.fallback, self.problem.start)]
        return min(found, key=lambda decision: decision.peak)

    def _construct(self, start: Ints) -> None:
        """Greedy and pruning at every depth."""
        for depth in self.options.depths:
            if self._late() and (self.best is not None or depth != self.options.depths[0]):
                return
            sequence, excess = self._repair(start, self.price, depth, 0.0, 0)
            self._offer(sequence, excess)

    def _construct_reordered(self) -> None:
        """Greedy from orders that need less memory to begin with: the given one improved by
        moves, and one made anew."""
        self._construct(self._eased(self.problem.start))
        if len(self.problem.start) <= _LONGEST_BEAM and not self._stop():
            start, length = self.problem.start, len(self.problem.start)
            anew = resequence(
                self.arrays, start, self.movable, self.budget, 0, length, self._width(), 0.0
            )
            self._construct(self._eased(settle(self.arrays, anew)))

    def _width(self) -> int:
        """Of the beam: as wide as half a second allows, or less when there is less time."""
        if self.options.iterations:
            return _COUNTED_WIDTH
        left = self.deadline - time.perf_counter()
        return 0 if left > _BEAM_NEEDS else _COUNTED_WIDTH

    def _eased(self, sequence: Ints) -> Ints:
        """``sequence`` after moves that lower the summed excess, as long as they do."""
        until = time.perf_counter() + min(0.1 * (self.deadline - self.started), 2.0)
        excess, idle = self._excess(sequence), 0
        for round_ in itertools.count():
            counted = self.options.iterations > 0
            over = round_ >= self.options.iterations if counted else time.perf_counter() > until
            if excess <= 0 or over or idle >= _IDLE_ROUNDS:
                break
            before = excess
            sequence, excess = reorder(self.arrays, sequence, self.movable, self.budget, 200)
            idle = 0 if excess < before else idle + 1
        self._offer(sequence, excess)
        return sequence

    def _struggle(self) -> None:
        """No feasible sequence yet: keep the least excess and retry with noise."""
        current, attempts = self.fallback, 0
        while self.best is None and not self._stop():
            attempts += 1
            if attempts > (self.options.iterations or _IDLE_ATTEMPTS):
                return
            noisy = self.price * np.exp(self.random.uniform(-0.7, 0.7, len(self.price)))
            start = self.problem.start if self.random.random() < 0.3 else current
            if self.options.order:
                start, _ = reorder(self.arrays, start, self.movable, self.budget, 100)
            depth = int(self.random.choice(self.options.depths))
            sequence, excess = self._repair(start, noisy, depth, 0.3, 1)
            self._offer(sequence, excess)
            current = self.fallback

    def _refine(self) -> None:
        """Large-neighbourhood search until time or iterations are over."""
        assert self.best is not None
        current, done, chunk, last_gain = self.best, 0, 4, 0
        gained_at = time.perf_counter()
        total = self.deadline - time.perf_counter()
        while not self._stop() and (not self.options.iterations or done < self.options.iterations):
            begin = time.perf_counter()
            left = max(0.0, self.deadline - begin) / max(total, 1e-9)
            if self.options.iterations:
                left = 1.0 - done / self.options.iterations
            share = 0.5 if self.options.order else 0.0
            current, self.best, gains = improve(
                self.arrays, current, self.best, self.original, self.problem.protected,
                self.movable, self.price, self.budget, chunk, share, 0.03 * left, 3, 400,
            )  # fmt: skip
            done += chunk
            spent = time.perf_counter() - begin
            if not self.options.iterations:
                chunk = max(1, min(2000, int(chunk * 0.1 / max(spent, 1e-6))))
            if gains:
                last_gain, gained_at = done, time.perf_counter()
                if self.progress is not None:
                    self.progress(self._peak(self.best), self._extra(self.best))
            elif not self.options.iterations and (
                done - last_gain > _IDLE_ITERATIONS
                or time.perf_counter() - gained_at > _IDLE_SHARE * total
            ):
                return

    def _repair(
        self, start: Ints, price: Floats, depth: int, noise: float, mode: int
    ) -> tuple[Ints, float]:
        """Repair in portions, to keep the time limit; stops when a portion gains nothing."""
        sequence, excess = start, self._excess(start)
        lowest = self._excess(self.fallback)
        while excess > 0:
            before = excess
            sequence, excess = repair(
                self.arrays, sequence, self.movable, price, self.budget, depth, noise, mode,
                _GIVE_UP, np.inf, _PORTION,
            )  # fmt: skip
            if 0 < excess < lowest:
                self.fallback, lowest = sequence, excess
            if excess >= before or self._late():
                break
        return sequence, excess

    def _offer(self, sequence: Ints, excess: float) -> None:
        """Consider a sequence for the best (when it fits) or the least bad."""
        if excess > 0:
            if excess < self._excess(self.fallback):
                self.fallback = sequence
            return
        pruned = prune(
            self.arrays, sequence, self.original, self.problem.protected, self.budget, 0.0
        )
        pruned = settle(self.arrays, pruned)
        if self._excess(pruned) > 0:
            return
        if self.best is None or self._cost(pruned) < self._cost(self.best):
            self.best = pruned
            if self.progress is not None:
                self.progress(self._peak(pruned), self._extra(pruned))

    def _cost(self, sequence: Ints) -> float:
        return float(cost_of(self.arrays, sequence))

    def _extra(self, sequence: Ints) -> float:
        base = self.problem.base_cost
        return (self._cost(sequence) - base) / base if base else 0.0

    def _excess(self, sequence: Ints) -> float:
        return float(excess_of(evaluate(self.arrays, sequence), self.budget))

    def _peak(self, sequence: Ints) -> int:
        return int(evaluate(self.arrays, sequence).total.max(initial=0))

    def _late(self) -> bool:
        return time.perf_counter() > self.deadline

    def _stop(self) -> bool:
        if self._late():
            return True
        if self.best is None:
            return self.enough is not None and self.enough(float("inf"))
        extra = self._cost(self.best) - self.problem.base_cost
        return extra <= 0 or (self.enough is not None and self.enough(extra))

    def _decision(self, sequence: Ints) -> Decision:
        sequence = settle(self.arrays, sequence)
        peak = self._peak(sequence)
        extra = max(0.0, self._cost(sequence) - self.problem.base_cost)
        return Decision(sequence, peak, extra, peak <= self.budget)
