"""Several searches at once: nodes moved, the file's order kept, and a certificate beside them.

The certificate (:mod:`memplan.solver.bound.order_free`) takes and gives: its events are where the
best plan is full, and what its solutions keep is a start of a search. Once the best plan is within
the gap of the bound, everything ends.

The compiled search and HiGHS both release Python's global lock, so threads use the cores. Where
rounds are counted (``iterations``) everything runs one after the other and depends on the seed
alone (:mod:`memplan.solver.strategies.counted`).
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from memplan.solver.bound.milp import Effort
from memplan.solver.bound.order_free import OrderFreeBound
from memplan.solver.evaluate import decide
from memplan.solver.forms import (
    stripped,
    with_all_encoded,
    with_forms,
    without_forms,
    without_last_kind,
)
from memplan.solver.problem import Decision, Ints, Problem
from memplan.solver.search.anytime import solve
from memplan.solver.search.lowest_peak import lowest_peak, solve_from
from memplan.solver.search.params import PARAMS, SearchOptions, SearchParams
from memplan.solver.strategies.published import baseline_decisions
from memplan.solver.strategies.standing import TROUBLE, Certificate, Standing
from memplan.solver.strategy import Progress

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PortfolioParams:
    """Constants of the portfolio; none of them was tuned on a record that we have."""

    in_order: float = 0.1
    """Share of the time for a search in the file's order when nodes may move."""
    first_stage: float = 0.4
    """Share of the first of two stages when they may not: the second goes on from the better
    result (0: greedy only)."""
    certificate: float = 0.5
    """Share of the time left that the certificate may take at once."""
    followed_start: float = 0.08
    """Share of the time for the search from what a solution of the certificate keeps."""
    baselines: float = 0.15
    """Share of the time for the plans of published planners (0: their plans are not looked at,
    unless nothing else fits)."""
    baselines_patient: float = 0.3
    """The same while nothing else fits."""
    one_baseline: float = 0.6
    """Share of what is left of that for each: none may use up the time of those behind it."""
    followed: int = 3
    """How many plans of others are starts of a search (0: none)."""
    lowest: float = 0.5
    """Share of the time left in which the lowest peak is driven for while nothing fits."""
    as_they_are: float = 0.5
    """Share of the time for plans with one kind of forms fewer, where there are some: they take
    more time for a byte than most recomputations, and hide them from a short search."""
    poll_seconds: float = 0.05
    """How often the searches are asked whether they are done, to stay open to Ctrl-C."""


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
    time_limit: float,
    options: PortfolioOptions,
    progress: Progress | None = None,
) -> tuple[Decision, Certificate]:
    """The best sequence of all searches, and the best bound.

    Stops early when the bound is reached, and on Ctrl-C, with the best sequence so far.
    """
    if not options.order:
        # The bound of the file's order knows nothing of what stands early by choice.
        problem = without_forms(problem)
    if options.iterations or time_limit <= 0:
        from memplan.solver.strategies.counted import solve_counted

        return solve_counted(problem, time_limit, options, progress)
    if not problem.forms:
        return _Portfolio(problem, time_limit, options, progress).run()
    begun = time.perf_counter()
    seconds = options.params.as_they_are * time_limit
    begin, _ = solve_portfolio(without_last_kind(problem), seconds, options, progress)
    left = time_limit - (time.perf_counter() - begun)
    return _Portfolio(problem, left, options, progress, begin).run()


class _Portfolio:
    """Threads of one run, and what they share."""

    def __init__(
        self,
        problem: Problem,
        time_limit: float,
        options: PortfolioOptions,
        progress: Progress | None,
        begin: Decision | None = None,
    ) -> None:
        """``begin``: a plan with one kind of forms fewer, to go on from, if there are any."""
        self.searched = with_all_encoded(problem)
        self.problem, self.options, self.progress = problem, options, progress
        self.params = options.params
        self.limit = time_limit
        self.halt = threading.Event()
        self.standing = Standing(problem, options.gap)
        if begin is not None:
            self.standing.keep(decide(problem, begin.sequence), "search among fewer forms")
        self.fixed_extra: float | None = None
        self.order_free: OrderFreeBound | None = None
        self.bound: Future[None] | None = None
        self.started = 0.0
        self.lock = threading.Lock()

    def run(self) -> tuple[Decision, Certificate]:
        """The searches, and the certificate between or beside them."""
        self.started = time.perf_counter()
        with ThreadPoolExecutor(max_workers=3) as pool:
            try:
                if self.options.order:
                    self._explore(pool)
                else:
                    self._keep_order(pool)
                # In the file's order nothing is left but to close the gap.
                if self.bound is not None:
                    self._wait([self.bound])
                self.halt.set()
            except KeyboardInterrupt:
                # Anytime: what was found by now is a whole answer.
                self.halt.set()
        best = self.standing.best
        if best is None:
            raise KeyboardInterrupt
        _LOG.info(
            "plan by %s after %.1f s; %s",
            self.standing.source,
            time.perf_counter() - self.started,
            self.standing.why_stopped(self._left() <= 0),
        )
        return best, self.standing.certificate()

    # Nodes may move: one thread explores all the time, the other has many things to do.

    def _explore(self, pool: ThreadPoolExecutor) -> None:
        free = SearchOptions(seed=self.options.seed, params=self.options.search)
        if self.problem.forms:
            free = replace(free, starts=(self._with_forms(self.standing.sequence),))
        first = pool.submit(self._search, free, self.limit)
        second = pool.submit(self._second_thread, replace(free, seed=free.seed + 1))
        self._wait([first, second])

    def _second_thread(self, options: SearchOptions) -> None:
        """The file's order, the certificate and its starts, the plans of others; then explore, and
        look at the bound again where the best plan is full by then."""
        if not self.problem.forms:
            self._search(replace(options, order=False), self.params.in_order * self.limit)
        self._certify(options)
        if not self.standing.fits and not self._done():
            self._drive_down(options)
        if not self._done() and not self.problem.forms:
            self._follow_baselines(options)
        self._certify(options)
        if not self._done():
            self._search(options, self._left())

    def _certify(self, options: SearchOptions) -> None:
        """Bound, search from what the solutions keep, and again where that brought another plan."""
        if not self.options.certify:
            return
        try:
            fresh = True
            while fresh and not self._done():
                fresh = self._bound_once(options)
        except TROUBLE as error:
            self.standing.without_bound(error)

    def _bound_once(self, options: SearchOptions) -> bool:
        """One look at the bound, and searches from its starts; whether anything was new."""
        deadline = time.perf_counter() + self.params.certificate * self._left()
        effort = Effort(deadline, self._done)
        if self.order_free is None:
            self.order_free = OrderFreeBound(self.problem, effort, self.standing.learn)
        self.order_free.effort = effort
        followed = 0
        for start in self.order_free.look(self.standing.sequence, self.standing.wanted):
            if followed < self.params.followed and not self._done():
                followed += 1
                self.standing.keep(self._search_from(start, options), "certificate")
        return self.order_free.fresh

    def _search_from(self, start: Ints, options: SearchOptions) -> Decision:
        seconds = min(self.params.followed_start * self.limit, self._left())
        start = self._with_forms(start)
        found = solve_from(self.searched, start, seconds, options, self._tell(), self._enough)
        return self._stripped(found)

    def _with_forms(self, sequence: Ints) -> Ints:
        return with_forms(self.problem, sequence) if self.problem.forms else sequence

    def _stripped(self, decision: Decision) -> Decision:
        """What a search with all forms found, as a decision of the problem."""
        if not self.problem.forms:
            return decision
        return decide(self.problem, stripped(self.problem, decision.sequence))

    def _drive_down(self, options: SearchOptions) -> None:
        """Nothing fits: a plan for less may be easier to find, and what is lowest is worth knowing.

        Greedy gets stuck in front of its aim; on the way to a lower one it may pass the budget.
        """
        effort = Effort(time.perf_counter() + self.params.lowest * self._left(), self._fits)
        best = self.standing.best
        begin = best if best is not None else decide(self.problem, self.problem.start)
        found = lowest_peak(self.problem, begin, effort, options)
        self.standing.keep(found, "drive for the lowest peak")

    def _fits(self) -> bool:
        return self.halt.is_set() or self.standing.fits

    def _follow_baselines(self, options: SearchOptions) -> None:
        """Explore from what published planners decide, too."""
        until = self._left() - self.params.baselines * self.limit
        patient = self._left() - self.params.baselines_patient * self.limit
        found: list[Decision] = []

        def left() -> float:
            if self._done():
                return 0.0
            return self._left() - (until if self.standing.fits else patient)

        for name, decision in baseline_decisions(self.problem, left, self.params.one_baseline):
            found.append(decision)
            self.standing.keep(decision, name)
        found.sort(key=lambda d: (not d.feasible, d.extra_cost if d.feasible else d.peak))
        for decision in found[: self.params.followed]:
            if not self._done():
                self.standing.keep(self._search_from(decision.sequence, options), "search")

    # The file's order kept: two searches at a time, and a certificate of their own.

    def _keep_order(self, pool: ThreadPoolExecutor) -> None:
        """Two stages of two searches in the file's order."""
        fixed = SearchOptions(order=False, seed=self.options.seed, params=self.options.search)
        for stage, share in enumerate((self.params.first_stage, 1.0)):
            if self._done():
                return
            seconds = min(share * self.limit, self._left())
            futures = [
                pool.submit(self._search, replace(fixed, seed=fixed.seed + 2 * stage + k), seconds)
                for k in range(2)
            ]
            self._wait(futures)
            if stage == 0:
                self._certify_order(pool)
                if self.standing.best is not None and self.standing.fits:
                    fixed = replace(fixed, begin=self.standing.best.sequence)

    def _certify_order(self, pool: ThreadPoolExecutor) -> None:
        """Begin to look for a bound, if there is anything to bound."""
        if not self.options.certify or self._left() <= 0:
            return
        if self.fixed_extra is None or self.fixed_extra > 0:
            self.bound = pool.submit(self._bound_order, self._left(), self.fixed_extra)

    def _bound_order(self, seconds: float, upper: float | None) -> None:
        from memplan.solver.bound.certify import lower_bound

        try:
            found = lower_bound(self.problem, seconds, upper, self.halt.is_set)
        except TROUBLE as error:
            self.standing.without_bound(error)
            return
        self.standing.learn(found.seconds, found.kind)
        # It knows nothing of recomputations that were asked for.
        if found.sequence is not None and not self.problem.protected.any():
            self.standing.keep(decide(self.problem, found.sequence), "certificate")

    # What both need.

    def _left(self) -> float:
        return self.limit - (time.perf_counter() - self.started)

    def _done(self) -> bool:
        return self.halt.is_set() or self._left() <= 0 or self.standing.closed

    def _wait(self, futures: list[Future[None]]) -> None:
        """Join the searches, but stay open to Ctrl-C."""
        while True:
            done, pending = wait(futures, timeout=self.params.poll_seconds)
            for future in done:
                future.result()
            if not pending:
                return

    def _search(self, options: SearchOptions, seconds: float) -> None:
        met = self._meet if options.order else None
        found = solve(self.searched, seconds, options, self._tell(), self._enough, met)
        decision = self._stripped(found)
        self.standing.keep(decision, "search")
        with self.lock:
            better = self.fixed_extra is None or decision.extra_cost < self.fixed_extra
            if not options.order and decision.feasible and better:
                self.fixed_extra = decision.extra_cost

    def _meet(self, sequence: Ints) -> Ints:
        if not self.problem.forms:
            return self.standing.meet(sequence)
        return self._with_forms(self.standing.meet(stripped(self.problem, sequence)))

    def _tell(self) -> Progress | None:
        if self.progress is None:
            return None
        progress = self.progress

        def tell(peak: int, extra: float) -> None:
            with self.lock:
                progress(peak, extra)

        return tell

    def _enough(self, extra: float) -> bool:
        """Whether a search with this extra cost may stop."""
        return self.halt.is_set() or self.standing.may_stop(extra)
