"""Several searches and a certificate for one problem.

All of them are steps of one list, which is gone through in *turns*: explore, plan as published
planners do, drive the peak down where nothing fits, look for a bound, explore with another seed; in
every further turn each of them works twice as hard. How hard, and what comes next, never depends on
the time limit, which only says where the list ends: so a run with more time begins as one with less
does, and goes on from there, and its plan is never worse. By the clock two threads work on the
list: the compiled search and HiGHS both release Python's global lock. By rounds (``iterations``)
there is one turn of them in one thread, HiGHS is given nodes of its tree instead of seconds, and
the plan depends on the seed alone: the same on every machine and under every load.

The certificate (:mod:`memplan.solver.bound.order_free`) takes and gives: its events are where the
best plan is full, and what its solutions keep is a start of a search. Once the best plan is within
the gap of the bound, everything ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from memplan.deadline import Deadline
from memplan.errors import UsageError
from memplan.solver.bound.milp import Effort
from memplan.solver.bound.order_free import OrderFreeBound, OrderFreeParams
from memplan.solver.evaluate import decide
from memplan.solver.forms import without_forms
from memplan.solver.problem import Decision, Flags, Ints, Problem
from memplan.solver.search.anytime import solve
from memplan.solver.search.lowest_peak import solve_from
from memplan.solver.search.params import PARAMS, SearchOptions, SearchParams
from memplan.solver.strategies.bottlenecks import Memory
from memplan.solver.strategies.incumbent import TROUBLE, Certificate, Incumbent
from memplan.solver.strategies.lowest_peak_strategy import RESTARTS, driven_down
from memplan.solver.strategies.segments import Segments
from memplan.solver.strategy import Progress

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PortfolioParams:
    """Constants of the portfolio; none of them was tuned on a record that we have."""

    first: int = 8
    """Rounds of every search in the first turn, by the clock."""
    most: int = 1024
    """Rounds of every search in late turns."""
    followed: int = 3
    """How many of the certificate's solutions are starts of a search, per look (0: none)."""
    looks: int = 2
    """Looks of the certificate at a time."""
    look_seconds: float = 2.0
    """Seconds for its first looks, by the clock; further ones have twice as long each time."""
    tree: int = 30
    """Nodes of the branch-and-bound tree per program, by rounds."""
    patience: int = 16
    """A turn without gain is the last when its searches have so many rounds for every recomputation
    of the best plan, or the most."""
    threads: int = 2
    """Threads, by the clock."""
    poll_seconds: float = 0.05
    """How often the searches are asked whether they are done, to stay open to Ctrl-C."""
    patience_seconds: float = 0.2
    """How long they are waited for behind the deadline, where there is a plan."""


@dataclass(frozen=True, slots=True)
class PortfolioOptions:
    """``order``: nodes may be moved. ``iterations``: rounds instead of time, see
    :class:`~memplan.solver.search.params.SearchOptions`. ``certify``: look for a lower bound beside
    the search. ``gap``: share of the step's time within which of the bound a plan is enough.
    """

    order: bool = True
    seed: int = 0
    iterations: int = 0
    certify: bool = True
    gap: float = 0.001
    params: PortfolioParams = PortfolioParams()
    search: SearchParams = PARAMS


def solve_portfolio(
    problem: Problem,
    deadline: Deadline,
    options: PortfolioOptions,
    progress: Progress | None = None,
) -> tuple[Decision, Certificate]:
    """The best sequence of all searches, and the best bound.

    Stops early when the bound is reached, and on Ctrl-C, with the best sequence so far.
    """
    if options.iterations:
        deadline = Deadline()
    if not options.order:
        # What stands early by choice is in no file's order.
        problem = without_forms(problem)
    return _Portfolio(problem, deadline, options, progress).run()


class _Portfolio:
    """One run: what its steps share, in one thread or in several."""

    def __init__(
        self,
        problem: Problem,
        deadline: Deadline,
        options: PortfolioOptions,
        progress: Progress | None,
    ) -> None:
        self.problem, self.options = problem, options
        self.params, self.deadline = options.params, deadline
        self.halt: Flags = np.zeros(1, np.bool_)  # an array: compiled searches look at it, too
        self.incumbent = Incumbent(problem, options.gap, progress)
        self.steps, self.taking = self._steps(), threading.Lock()
        self.bound: OrderFreeBound | None = None
        self.certify = options.certify
        self.certifying, self.certified = threading.Lock(), 0
        self.settled: Decision | None = None  # the plan of which a look taught nothing
        self.valleys: list[Decision] = []  # of published planners, and what was reached from them

    def run(self) -> tuple[Decision, Certificate]:
        """All steps, until nothing is left to do."""
        threads = 1 if self.options.iterations else self.params.threads
        try:
            if threads == 1:
                self._work()
            else:
                self._side_by_side(threads)
        except KeyboardInterrupt:
            # Anytime: what was found by now is a whole answer.
            if not self.incumbent.fits:
                raise
        _LOG.info(
            "plan by %s after %.1f s; %s",
            self.incumbent.source,
            self.deadline.spent,
            self.incumbent.why_stopped(self.deadline.passed),
        )
        return self.incumbent.best, self.incumbent.certificate()

    def _side_by_side(self, threads: int) -> None:
        """What is late by a step that looks at no clock is left behind: it ends by itself, and
        nobody hears of it."""
        pool = ThreadPoolExecutor(max_workers=threads)
        try:
            self._wait([pool.submit(self._work) for _ in range(threads)])
        finally:
            self.halt[0] = True
            pool.shutdown(wait=False)

    def _work(self) -> None:
        """One step after the other, while there are any."""
        while not self.incumbent.closed and not self.halt[0]:
            with self.taking:
                step = next(self.steps, None)
            if step is None:
                return
            step()
            if self.deadline.passed:
                return

    def _steps(self) -> Iterator[Callable[[], None]]:
        """What there is to do, in order; by the clock turn after turn, while that brings
        anything."""
        counted = self.options.iterations
        if counted:
            # Where there are several ways to make tensors again, what is found depends on the
            # start.
            tries = 3 if len(self.problem.arrays.others) else 1
            yield from (partial(self._explore, k, counted) for k in range(tries))
            yield self._publish
            yield partial(self._drive_down, 0)
            yield partial(self._certify, counted)
            return
        params, turn = self.params, 0
        while True:
            rounds, before = min(params.first << turn, params.most), self._reached()
            yield partial(self._explore, 2 * turn, rounds)
            if not turn:
                yield self._publish
            yield partial(self._drive_down, turn)
            yield partial(self._certify, rounds)
            yield partial(self._explore, 2 * turn + 1, rounds)
            clones = len(self.incumbent.sequence) - len(self.problem.order) + 5
            enough = rounds >= min(params.most, params.patience * clones)
            if enough and not self._uncertain() and self._reached() == before:
                return
            turn += 1

    # The steps.

    def _explore(self, number: int, rounds: int) -> None:
        """The ``number``-th search, with a seed of its own, from the best plan so far."""
        options = replace(
            self._options(rounds),
            seed=self.options.seed + number,
            turn=number,
            starts=(self.incumbent.sequence,) if self.incumbent.fits else (),
        )
        found = solve(self.problem, self.deadline, options, self._keep, self._enough)
        self._keep(found.sequence)

    def _publish(self) -> None:
        """What published planners make of it: they do not search, and are soon done."""
        if not self.options.order:
            return
        for planner in (Memory(), Segments()):
            with suppress(UsageError):  # it is not known which nodes are forward
                found = planner.solve(without_forms(self.problem), self.deadline.left)
                self.incumbent.keep(found.decision, planner.name)
                self.valleys.append(found.decision)

    def _certify(self, rounds: int) -> None:
        """Bound, search from what the solutions keep, and again where that brought another plan."""
        if not self._uncertain() or not self.certifying.acquire(blocking=False):
            return
        try:
            for _ in range(self.params.looks):
                if self._uncertain() and not self._done():
                    self._look(rounds)
            self.certified += 1
        except TROUBLE as error:
            self.incumbent.without_bound(error)
            self.certify = False
        finally:
            self.certifying.release()

    def _uncertain(self) -> bool:
        """Whether the certificate may still learn something."""
        return self.certify and self.incumbent.best is not self.settled

    def _look(self, rounds: int) -> None:
        """One look at the bound, and searches from its starts."""
        seconds = self.params.look_seconds * (1 << self.certified)
        effort = Effort(self.deadline.share(most=seconds), self._done)
        params = None
        if self.options.iterations:
            effort = Effort(nodes=self.params.tree)
            params = params_for(rounds)
        if self.bound is None:
            order_kept = not self.options.order
            self.bound = OrderFreeBound(
                self.problem, effort, self.incumbent.learn, params, order_kept
            )
        self.bound.effort = effort
        plan = self.incumbent.best
        starts = self.bound.look(self.incumbent.sequence, self.incumbent.wanted)
        for followed, start in enumerate(starts):
            if followed < self.params.followed and not self._done():
                self._search_from(start, rounds)
        if not self.bound.fresh:
            self.settled = plan

    def _drive_down(self, turn: int) -> None:
        """Nothing fits: a plan for less may be easier to find, and what is lowest is worth knowing.

        Greedy gets stuck in front of its aim; on the way to a lower one it may pass the budget.
        """
        if self.incumbent.fits or self._done():
            return
        rounds = min(self.options.iterations or 1 << turn, RESTARTS)
        options = replace(self._options(rounds), seed=self.options.seed + turn)
        begins, effort = [self.incumbent.best, *self.valleys], Effort(self.deadline, self._fits)
        best, *self.valleys = driven_down(self.problem, begins, effort, options)
        for found in (best, *self.valleys):
            self.incumbent.keep(found, "drive for the lowest peak")

    # What they need.

    def _options(self, rounds: int) -> SearchOptions:
        options = self.options
        return SearchOptions(
            options.order, options.seed, rounds, params=options.search, halt=self.halt
        )

    def _search_from(self, start: Ints, rounds: int) -> None:
        keep, options = partial(self._keep, source="certificate"), self._options(rounds)
        found = solve_from(self.problem, start, self.deadline, options, keep, self._enough)
        keep(found.sequence)

    def _keep(self, sequence: Ints, source: str = "search") -> None:
        """Remember what a search found."""
        self.incumbent.keep(decide(self.problem, sequence), source)

    def _reached(self) -> tuple[bool, float, float]:
        """How good plan and bound are."""
        best, bound = self.incumbent.best, self.incumbent.bound
        return best.feasible, best.extra_cost if best.feasible else best.peak, bound.seconds

    def _fits(self) -> bool:
        return bool(self.halt[0]) or self.incumbent.fits

    def _done(self) -> bool:
        return bool(self.halt[0]) or self.deadline.passed or self.incumbent.closed

    def _enough(self, _: float) -> bool:
        """Whether a search may stop: what it has found is the incumbent, or costs more."""
        return bool(self.halt[0]) or self.incumbent.closed

    def _wait(self, futures: list[Future[None]]) -> None:
        """Join the searches, but stay open to Ctrl-C; where there is a plan, not for long behind
        the deadline."""
        pending = set(futures)
        latest = self.deadline.seconds + self.params.patience_seconds
        while pending and not (self.incumbent.fits and self.deadline.spent > latest):
            done, pending = wait(pending, timeout=self.params.poll_seconds)
            for future in done:
                future.result()


def params_for(rounds: int) -> OrderFreeParams:
    """How hard the certificate works beside ``rounds`` of a search. Programs in whole numbers take
    longer than the search itself, so there are few, and none for a handful of rounds."""
    return OrderFreeParams(
        looks=min(8, 1 + rounds // 6),
        solved=0 if rounds < 10 else 1 if rounds < 50 else 2,
        most_events=1 if rounds < 50 else 2,
    )
