"""Several searches and a certificate for one problem, by the clock or by rounds.

The certificate (:mod:`memplan.solver.bound.order_free`) takes and gives: its events are where the
best plan is full, and what its solutions keep is a start of a search. Once the best plan is within
the gap of the bound, everything ends.

By the clock, two threads share the work: the compiled search and HiGHS both release Python's global
lock. By rounds (``iterations``) the same steps run one after the other, HiGHS is given nodes of its
tree instead of seconds, and the plan depends on the seed alone: the same on every machine and under
every load.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial

from memplan.deadline import Deadline
from memplan.solver.bound.milp import Effort
from memplan.solver.bound.order_free import OrderFreeBound, OrderFreeParams
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
from memplan.solver.search.lowest_peak import solve_from
from memplan.solver.search.params import PARAMS, SearchOptions, SearchParams
from memplan.solver.strategies.incumbent import TROUBLE, Certificate, Incumbent
from memplan.solver.strategies.lowest_peak_strategy import lowest_plan
from memplan.solver.strategy import Progress

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PortfolioParams:
    """Constants of the portfolio; none of them was tuned on a record that we have."""

    in_order: float = 0.1
    """Share of the time for a search in the file's order when nodes may move."""
    certificate: float = 0.5
    """Share of the time left that the certificate may take at once."""
    followed: int = 3
    """How many of the certificate's solutions are starts of a search, per look (0: none)."""
    followed_start: float = 0.08
    """Share of the time for each of these searches."""
    lowest: float = 0.5
    """Share of the time left in which the lowest peak is driven for while nothing fits."""
    fewer_forms: float = 0.5
    """Share of the time for plans with one kind of forms fewer, where there are some: they take
    more time for a byte than most recomputations, and hide them from a short search."""
    poll_seconds: float = 0.05
    """How often the searches are asked whether they are done, to stay open to Ctrl-C."""
    patience_seconds: float = 0.2
    """How long they are waited for behind the deadline, where there is a plan."""

    # By rounds.
    tree: int = 30
    """Nodes of the branch-and-bound tree per program."""
    looks: int = 2
    """Looks of the certificate in a row."""


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
    if problem.forms:
        first = deadline.share(options.params.fewer_forms)
        found, _ = solve_portfolio(without_last_kind(problem), first, options, progress)
        problem = replace(problem, known=(*problem.known, found.sequence))
    return _Portfolio(problem, deadline.share(), options, progress).run()


class _Portfolio:
    """One run: what its searches share, in one thread or in two."""

    def __init__(
        self,
        problem: Problem,
        deadline: Deadline,
        options: PortfolioOptions,
        progress: Progress | None,
    ) -> None:
        self.searched = with_all_encoded(problem)
        self.problem, self.options = problem, options
        self.params, self.deadline = options.params, deadline
        self.free = SearchOptions(options.order, options.seed, options.iterations)
        self.free = replace(self.free, params=options.search)
        self.halt = threading.Event()
        self.incumbent = Incumbent(problem, options.gap, progress)
        self.bound: OrderFreeBound | None = None

    def run(self) -> tuple[Decision, Certificate]:
        """All searches, and the certificate between or beside them."""
        try:
            if self.incumbent.closed:
                pass
            elif self.options.iterations:
                self._one_by_one()
            else:
                self._side_by_side()
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

    def _one_by_one(self) -> None:
        """Every step in this thread, each for its rounds."""
        self._keep_order()
        # Where there are several ways to make tensors again, what is found depends on the start.
        if len(self.problem.arrays.others):
            self._explore(0, anew=True)
            self._explore(1)
            self._explore(2)
        else:
            self._explore(0)
        self._drive_down()
        self._certify()

    def _side_by_side(self) -> None:
        """One thread explores all the time, the other has many things to do. What is late by a
        step that looks at no clock is left behind: it ends by itself, and nobody hears of it."""
        pool = ThreadPoolExecutor(max_workers=2)
        try:
            self._wait([pool.submit(self._explore, 0), pool.submit(self._second_thread)])
        finally:
            self.halt.set()
            pool.shutdown(wait=False)

    def _second_thread(self) -> None:
        self._keep_order()
        self._certify()
        self._drive_down()
        self._certify()
        # What is left of the time; and the bound is looked at where the best plan is full by then.
        self._explore(1)

    # The steps.

    def _keep_order(self) -> None:
        """Search in the file's order, if that is not what all others do."""
        if self.options.order and not self.problem.forms:
            self._search(replace(self.free, order=False), self._share(self.params.in_order))

    def _explore(self, turn: int, anew: bool = False) -> None:
        """Search with the seed of ``turn`` until time or rounds are over; ``anew``: not from the
        best plan, where one was known before."""
        if turn and self._done():
            return
        options = replace(self.free, seed=self.free.seed + turn)
        if self.problem.known and not anew:
            options = replace(options, starts=(self._with_forms(self.incumbent.sequence),))
        self._search(options, self.deadline.share())

    def _certify(self) -> None:
        """Bound, search from what the solutions keep, and again where that brought another plan."""
        if not self.options.certify:
            return
        looks = 0
        try:
            while not self._done() and self._look():
                looks += 1
                if self.options.iterations and looks >= self.params.looks:
                    return
        except TROUBLE as error:
            self.incumbent.without_bound(error)

    def _look(self) -> bool:
        """One look at the bound, and searches from its starts; whether anything was new."""
        effort = Effort(self.deadline.share(self.params.certificate), self._done)
        params = None
        if self.options.iterations:
            effort = Effort(nodes=self.params.tree)
            params = params_for(self.options.iterations)
        if self.bound is None:
            order_kept = not self.options.order
            self.bound = OrderFreeBound(
                self.problem, effort, self.incumbent.learn, params, order_kept
            )
        self.bound.effort = effort
        starts = self.bound.look(self.incumbent.sequence, self.incumbent.wanted)
        for followed, start in enumerate(starts):
            if followed < self.params.followed and not self._done():
                self._search_from(start)
        return self.bound.fresh

    def _drive_down(self) -> None:
        """Nothing fits: a plan for less may be easier to find, and what is lowest is worth knowing.

        Greedy gets stuck in front of its aim; on the way to a lower one it may pass the budget.
        """
        if self.incumbent.fits or self._done():
            return
        effort = Effort(self.deadline.share(self.params.lowest), self._fits)
        found = lowest_plan(self.problem, self.incumbent.best, effort, self.free)
        self.incumbent.keep(found, "drive for the lowest peak")

    # What they need.

    def _search(self, options: SearchOptions, deadline: Deadline) -> None:
        """Search, and keep what is found; of several at a time, all refine the best in the end."""
        meet = self._meet if not options.iterations and options.order == self.free.order else None
        found = solve(self.searched, deadline, options, self._keep, self._enough, meet)
        self._keep(found.sequence)

    def _search_from(self, start: Ints) -> None:
        deadline = self._share(self.params.followed_start)
        start, keep = self._with_forms(start), partial(self._keep, source="certificate")
        keep(solve_from(self.searched, start, deadline, self.free, keep, self._enough).sequence)

    def _keep(self, sequence: Ints, source: str = "search") -> None:
        """Remember what a search with all forms found, as a decision of the problem."""
        self.incumbent.keep(decide(self.problem, stripped(self.problem, sequence)), source)

    def _with_forms(self, sequence: Ints) -> Ints:
        return with_forms(self.problem, sequence) if self.problem.forms else sequence

    def _meet(self, sequence: Ints) -> Ints:
        """What to refine in the end: the best of all."""
        return self._with_forms(self.incumbent.best.sequence) if self.incumbent.fits else sequence

    def _share(self, share: float) -> Deadline:
        """The end of what may take a share of the whole time."""
        return self.deadline.share(most=share * self.deadline.seconds)

    def _fits(self) -> bool:
        return self.halt.is_set() or self.incumbent.fits

    def _done(self) -> bool:
        return self.halt.is_set() or self.deadline.passed or self.incumbent.closed

    def _enough(self, _: float) -> bool:
        """Whether a search may stop: what it has found is the incumbent, or costs more."""
        return self.halt.is_set() or self.incumbent.closed

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
