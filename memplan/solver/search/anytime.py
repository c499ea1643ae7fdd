"""The search: greedy from several orders, then large-neighbourhood search, anytime.

Everything that runs often is compiled; this module only decides what to run next and when to stop.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from memplan.solver.evaluate import decide, evaluate, excess_of
from memplan.solver.jit import is_cold, seed_random
from memplan.solver.order.beam import resequence
from memplan.solver.order.local import reorder, settle
from memplan.solver.problem import NONE, Arrays, Decision, Flags, Floats, Ints, Problem
from memplan.solver.search.neighbourhood import improve
from memplan.solver.search.prune import prune
from memplan.solver.search.repair import cost_of, repair
from memplan.solver.search.starts import ordered_start, shaken_start
from memplan.solver.strategy import Progress

# Moves per call of the compiled repair, between looks at the clock.
_PORTION = 50
# Failed attempts in a row after which a repair is stuck.
_GIVE_UP = 10
# Restarts after which an infeasible problem is given up, time limit or not.
_IDLE_ATTEMPTS = 300
# Shares of the budget to aim at while nothing fits.
_AIMS = (1.0, 1.0, 0.99, 0.97, 0.94)
# How often nodes, or recomputations only, are moved in a round of the refinement.
_MOVING, _MOVING_AGAIN = 0.5, 0.04
# Orders are explored for this share of the time; of that, the last part goes to the best few.
_EXPLORE, _BEST_FEW_FROM, _BEST_FEW = 0.65, 0.6, 3
# Shares of the time limit for the search from one start, which is also stopped early.
_START_SHARE, _START_IDLE_ITERATIONS = 0.06, 300
# Starts in a row that bring nothing, after which no more are made.
_IDLE_STARTS = 12
# Starts, when iterations are counted instead of time.
_COUNTED_STARTS = 3
# The refinement ends when so many rounds, or this share of its time, brought nothing.
_IDLE_ITERATIONS = 5000
_IDLE_SHARE = 0.4
_ROUNDS_PER_CLONE = 80


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """``order``: whether nodes may be moved. ``iterations``: stop after so many rounds of the
    large-neighbourhood search (0: only the time limit counts); results then depend on the seed
    alone. ``begin``: a feasible sequence to go on from. ``starts``: sequences to search from beside
    the given order, feasible or not. ``refine``: go on after greedy and pruning.
    """

    order: bool = True
    seed: int = 0
    iterations: int = 0
    depths: tuple[int, ...] = (2, 4, 14, 64)
    begin: Ints | None = None
    starts: tuple[Ints, ...] = ()
    refine: bool = True


def solve(
    problem: Problem,
    time_limit: float,
    options: SearchOptions | None = None,
    progress: Progress | None = None,
    enough: Callable[[float], bool] | None = None,
    meet: Callable[[Ints], Ints] | None = None,
) -> Decision:
    """The best sequence found within ``time_limit`` seconds.

    Args:
        problem: what to solve.
        time_limit: seconds, compilation not counted.
        options: see :class:`SearchOptions`.
        progress: told of improvements.
        enough: given the best extra cost in seconds, says whether to stop (a bound is reached).
        meet: given the best sequence before the last refinement, returns the one to refine (of
            several searches: the best of all).
    """
    return _Search(problem, time_limit, options or SearchOptions(), progress, enough, meet).run()


def warm_up() -> None:
    """Load (or, once per version, compile) the machine code, so that no time limit pays for it.

    The beam search is compiled by a second process meanwhile; where none can be started, here.
    """
    helper = _compile_beam_beside() if is_cold() else None
    problem = tiny_problem()
    arrays, order, flags = problem.arrays, problem.order, problem.movable
    solve(problem, 0.0, SearchOptions(order=False, iterations=1))
    improve(arrays, order, order, flags, ~flags, flags, arrays.cost, 4, 0, 0.0, 0.0, 3, 400)
    reorder(arrays, order, flags, 3, 0)
    if helper is not None:
        helper.wait()
    warm_up_beam()


def warm_up_beam() -> None:
    """The part of :func:`warm_up` that only orders made anew need."""
    problem = tiny_problem()
    resequence(problem.arrays, problem.order, problem.movable, 3, 0, 3, 1, 0.0)


def _compile_beam_beside() -> subprocess.Popen[bytes] | None:
    code = "from memplan.solver.search.anytime import warm_up_beam; warm_up_beam()"
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    except OSError:
        return None


def tiny_problem() -> Problem:
    """Three nodes, one of which may run again."""
    arrays = Arrays(
        read_start=np.array([0, 0, 1, 3]),
        reads=np.array([0, 0, 1]),
        write_start=np.array([0, 1, 2, 3]),
        writes=np.array([0, 1, 2]),
        alias_of=np.array([NONE] * 3),
        inplace_start=np.array([0] * 4),
        inplace_of=np.zeros(0, np.int64),
        droppable=np.zeros(3, np.bool_),
        fleeting=np.ones(3, np.bool_),
        nbytes=np.array([2, 1, 1]),
        alike=np.array([0, 1, 1]),
        resident=np.zeros(3, np.bool_),
        pinned=np.zeros(3, np.bool_),
        eager=np.zeros(3, np.bool_),
        maker=np.array([0, 1, 2]),
        rank=np.array([0, 1, 2]),
        cost=np.ones(3),
        workspace=np.array([0, 2, 0]),
        inside=np.zeros(3, np.int64),
    )
    order, flags = np.array([0, 1, 2]), np.ones(3, np.bool_)
    return Problem(arrays, order, 4, order, ~flags, flags)


class _Search:
    """State of one search."""

    def __init__(
        self,
        problem: Problem,
        time_limit: float,
        options: SearchOptions,
        progress: Progress | None,
        enough: Callable[[float], bool] | None,
        meet: Callable[[Ints], Ints] | None,
    ) -> None:
        self.problem, self.arrays, self.budget = problem, problem.arrays, problem.budget
        self.options, self.progress, self.enough, self.meet = options, progress, enough, meet
        self.random = np.random.default_rng(options.seed)
        self.original: Flags = np.zeros(len(self.arrays.cost), np.bool_)
        self.original[problem.order] = True
        self.movable: Flags = problem.movable & options.order
        # A free node still has a price, so that of two free moves the smaller one wins.
        self.price: Floats = self.arrays.cost + max(problem.base_cost, 1e-12) * 1e-9
        self.told = np.inf  # the best extra cost that was reported
        self.best: Ints | None = None
        self.fallback: Ints = problem.start
        self.deadline = time.perf_counter() + time_limit
        self.started = time.perf_counter()

    def run(self) -> Decision:
        """Greedy from the given order; other orders explored; the best refined."""
        seed_random(self.options.seed)
        if self._excess(self.problem.start) <= 0:
            return self._decision(self.problem.start)
        if self.options.begin is not None:
            self._offer(self.options.begin, self._excess(self.options.begin))
        else:
            for start in self.options.starts:
                self._offer(start, self._excess(start))
            if self.best is None:
                self._construct(self.problem.start)
            if self.options.order and not self._stop():
                self._explore()
        if self.best is None and self.options.refine:
            self._struggle()
        if self.best is not None and self.options.refine:
            if self.meet is not None:
                self._take(self.meet(self.best))
            self._refine()
            if not self.options.iterations:
                self._keep_shaking()
        if self.best is not None:
            return self._decision(self.best)
        # The least summed excess need not be the lowest peak.
        found = [self._decision(s) for s in (self.fallback, self.problem.start)]
        return min(found, key=lambda decision: decision.peak)

    def _exchange(self, sequence: Ints | None) -> Ints | None:
        """Put another best sequence in place; the one before."""
        before, self.best = self.best, sequence
        return before

    def _take(self, sequence: Ints) -> None:
        """Go on from a feasible sequence if it is better."""
        if self.best is None or self._cost(sequence) < self._cost(self.best):
            self.best = sequence

    def _construct(self, start: Ints) -> None:
        """Greedy and pruning at every depth."""
        for depth in self.options.depths:
            if self._late() and (self.best is not None or depth != self.options.depths[0]):
                return
            sequence, excess = self._repair(start, self.price, depth, 0.0, 0)
            self._offer(sequence, excess)

    def _explore(self) -> None:
        """Greedy and a short search from many starts; then a longer one from the best few."""
        total = self.deadline - self.started
        until = self.started + _EXPLORE * _BEST_FEW_FROM * total
        found: list[tuple[float, Ints]] = []
        idle = number = 0
        while idle < _IDLE_STARTS and not self._stop():
            over = time.perf_counter() > until
            if number >= _COUNTED_STARTS if self.options.iterations else over:
                break
            before = self.best
            result = self._search_from(self._start(number), _START_SHARE * total)
            if result is not None:
                found.append(result)
            idle = 0 if self.best is not before or self.best is None else idle + 1
            number += 1
        self._continue_best(sorted(found, key=lambda item: item[0])[:_BEST_FEW])

    def _start(self, number: int) -> Ints:
        """What was given; then new orders and, twice as often, shaken plans."""
        if number < len(self.options.starts):
            return self.options.starts[number]
        number -= len(self.options.starts)
        if self.best is not None and number > 1 and number % 3:
            return shaken_start(self.problem, self.movable, self.random, self.best)
        counted = self.options.iterations > 0
        return ordered_start(self.problem, self.movable, self.random, number, counted)

    def _keep_shaking(self) -> None:
        """With the rest of the time: shaken plans, searched and refined."""
        idle = 0
        while idle < _IDLE_STARTS and not self._stop():
            assert self.best is not None
            before = self.best
            start = shaken_start(self.problem, self.movable, self.random, self.best)
            self._search_from(start, _START_SHARE * (self.deadline - self.started))
            idle = 0 if self.best is not before else idle + 1

    def _search_from(self, start: Ints, seconds: float) -> tuple[float, Ints] | None:
        """Greedy and a short search; the best sequence from this start with its cost."""
        best = self._exchange(None)
        until = time.perf_counter() + seconds
        excess = self._excess(start)
        self._offer(start, excess)
        if excess > 0:
            self._construct(start)
        if self.best is not None:
            self._refine(until, _START_IDLE_ITERATIONS)
        found = self._exchange(best)
        if found is None:
            return None
        self._take(found)
        return self._cost(found), found

    def _continue_best(self, found: list[tuple[float, Ints]]) -> None:
        """Longer searches from the best few of different starts."""
        for left in range(len(found), 0, -1):
            now = time.perf_counter()
            until = self.started + _EXPLORE * (self.deadline - self.started)
            if self._stop() or (now >= until and not self.options.iterations):
                return
            best = self._exchange(found[len(found) - left][1])
            self._refine(now + (until - now) / left, _IDLE_ITERATIONS // 3)
            longer = self._exchange(best)
            if longer is not None:
                self._take(longer)

    def _struggle(self) -> None:
        """No feasible sequence yet: keep the least excess and retry with noise."""
        current, attempts = self.fallback, 0
        while self.best is None and not self._stop():
            attempts += 1
            if attempts > (self.options.iterations or _IDLE_ATTEMPTS):
                return
            noisy = self.price * np.exp(self.random.uniform(-0.7, 0.7, len(self.price)))
            start = self.problem.start if self.random.random() < 0.3 else current
            start, _ = reorder(self.arrays, start, self.movable, self.budget, 100)
            depth = int(self.random.choice(self.options.depths))
            # Greedy gets stuck in front of its aim; behind the budget that does no harm.
            aim = int(self.budget * self.random.choice(_AIMS))
            sequence, _ = self._repair(start, noisy, depth, 0.3, 1, aim)
            sequence, excess = reorder(self.arrays, sequence, self.movable, self.budget, 100)
            self._offer(sequence, excess)
            current = self.fallback

    def _refine(self, until: float = np.inf, patience: int = _IDLE_ITERATIONS) -> None:
        """Large-neighbourhood search until time or iterations are over, or nothing comes.

        ``until``: on the clock; ``patience``: rounds without gain, fewer where there is little to
        vary. Counted iterations go before.
        """
        assert self.best is not None
        clones = len(self.best) - len(self.problem.order)
        patience = min(patience, _ROUNDS_PER_CLONE * (clones + 5))
        counted = self.options.iterations
        current, done, chunk, last_gain = self.best, 0, 4, 0
        begun = gained_at = time.perf_counter()
        until = min(until, self.deadline)
        total = max(until - begun, 1e-9)
        while not self._stop() and (done < counted or not counted):
            now = time.perf_counter()
            if now > until and not counted:
                return
            left = 1.0 - done / counted if counted else (until - now) / total
            current, self.best, gains = improve(
                self.arrays,
                current,
                self.best,
                self.original,
                self.problem.protected,
                self.movable,
                self.price,
                self.budget,
                chunk,
                _MOVING if self.options.order else _MOVING_AGAIN,
                0.03 * left,
                3,
                400,
            )
            done += chunk
            spent = time.perf_counter() - now
            if not counted:
                chunk = max(1, min(2000, int(chunk * 0.1 / max(spent, 1e-6))))
            if gains:
                last_gain, gained_at = done, time.perf_counter()
                self._report()
            elif not counted and (
                done - last_gain > patience
                or time.perf_counter() - gained_at > max(_IDLE_SHARE * total, 1.0)
            ):
                return

    def _report(self) -> None:
        """Tell of the best sequence, if it is better than what was told before."""
        if self.progress is None or self.best is None:
            return
        extra = self._extra(self.best)
        if extra < self.told:
            self.told = extra
            self.progress(self._peak(self.best), extra)

    def _repair(
        self,
        start: Ints,
        price: Floats,
        depth: int,
        noise: float,
        mode: int,
        aim: int | None = None,
    ) -> tuple[Ints, float]:
        """Repair in portions, to keep the time limit; stops when a portion gains nothing.

        ``aim``: bytes, by default the budget. The excess returned is over the budget.
        """
        aim = self.budget if aim is None else aim
        sequence = start
        lowest = float(excess_of(evaluate(self.arrays, sequence), aim))
        over, fallback = self._excess(start), self._excess(self.fallback)
        while over > 0:
            sequence, excess = repair(
                self.arrays,
                sequence,
                self.movable,
                price,
                aim,
                depth,
                noise,
                mode,
                _GIVE_UP,
                np.inf,
                _PORTION,
            )
            over = self._excess(sequence)
            if 0 < over < fallback:
                self.fallback, fallback = sequence, over
            if excess >= lowest or self._late():
                break
            lowest = excess
        return sequence, over

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
            self._report()

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
        return decide(self.problem, settle(self.arrays, sequence))
