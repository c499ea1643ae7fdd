"""Several searches at once: the file's order kept, nodes moved, and a certificate beside them.

The compiled search and HiGHS both release Python's global lock, so threads use the cores. Without
a time limit (``iterations``) everything runs one after the other and depends on the seed alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from memplan.solver.evaluate import decide
from memplan.solver.problem import Decision, Ints, Problem, better
from memplan.solver.search.anytime import solve
from memplan.solver.search.params import PARAMS, SearchOptions, SearchParams
from memplan.solver.strategy import Progress
from memplan.strategies.dtr import Dtr
from memplan.strategies.keepset import Baseline
from memplan.strategies.knapsack import Knapsack
from memplan.strategies.mincut import MinCut
from memplan.strategies.segments import Segments

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PortfolioParams:
    """Constants of the portfolio; none of them was tuned on a record that we have."""

    in_order: float = 0.3
    """Share of the time for a search in the file's order, which is what the certificate speaks of,
    when nodes may move."""
    first_stage: float = 0.4
    """Share of the first of two stages when they may not: the second goes on from the better
    result (0: greedy only)."""
    baselines: float = 0.25
    """Share of the time for the plans of published planners (0: their plans are not looked at,
    unless nothing else fits)."""
    baselines_patient: float = 0.5
    """The same while nothing else fits."""
    one_baseline: float = 0.6
    """Share of what is left of that for each: none may use up the time of those behind it."""
    followed: int = 3
    """How many of their plans are starts of a search (0: none)."""
    poll_seconds: float = 0.1
    """How often the searches are asked whether they are done, to stay open to Ctrl-C."""


@dataclass(frozen=True, slots=True)
class PortfolioOptions:
    """``order``: nodes may be moved. ``iterations``: rounds instead of time, see
    :class:`~memplan.solver.search.params.SearchOptions`. ``certify``: look for a lower bound beside
    the search.
    """

    order: bool = True
    seed: int = 0
    iterations: int = 0
    certify: bool = True
    params: PortfolioParams = PortfolioParams()
    search: SearchParams = PARAMS


@dataclass(frozen=True, slots=True)
class Certificate:
    """A lower bound on the extra cost in seconds, and what it holds for."""

    seconds: float
    kind: str


NO_CERTIFICATE = Certificate(0.0, "trivial")


def solve_portfolio(
    problem: Problem,
    time_limit: float,
    options: PortfolioOptions,
    progress: Progress | None = None,
) -> tuple[Decision, Certificate]:
    """The best sequence of all searches, and the best bound.

    Stops early when the bound is reached, and on Ctrl-C, with the best sequence so far.
    """
    if options.iterations or time_limit <= 0:
        return _one_by_one(problem, time_limit, options, progress), NO_CERTIFICATE
    return _Portfolio(problem, time_limit, options, progress).run()


def _one_by_one(
    problem: Problem, time_limit: float, options: PortfolioOptions, progress: Progress | None
) -> Decision:
    limit = time_limit if not options.iterations else float("inf")
    fixed = SearchOptions(
        order=False, seed=options.seed, iterations=options.iterations, params=options.search
    )
    best = solve(problem, limit, fixed, progress)
    if options.order:
        moved = solve(problem, limit, replace(fixed, order=True), progress)
        best = moved if better(moved, best) else best
    return best


def baseline_decisions(
    problem: Problem, left: Callable[[], float], share: float = 0.6
) -> Iterator[tuple[str, Decision]]:
    """What published planners decide, by name, quickest first, while ``left()`` seconds are left.

    The search starts from their plans, too: where one of them has a better idea, ours is at least
    as good. Those that must know the forward nodes are left out where the problem does not say.
    Each is given ``share`` of the time left.
    """
    local = Dtr(heuristic="h_local")
    planners: tuple[Baseline, ...] = (
        Knapsack(cut=0),
        Segments(),
        local,
        Knapsack(),
        MinCut(),
        Dtr(),
    )
    for planner in planners:
        seconds = left()
        if seconds <= 0:
            return
        if problem.forward is not None or isinstance(planner, Dtr):
            yield planner.name, planner.solve(problem, share * seconds).decision


class _Portfolio:
    """Threads of one run, and what they share."""

    def __init__(
        self,
        problem: Problem,
        time_limit: float,
        options: PortfolioOptions,
        progress: Progress | None,
    ) -> None:
        self.problem, self.options, self.progress = problem, options, progress
        self.params = options.params
        self.limit = time_limit
        self.halt = threading.Event()
        self.best: Decision | None = None
        self.source = ""
        self.fixed_best: Decision | None = None
        self.shared: Ints | None = None
        self.certificate = NO_CERTIFICATE
        self.bound: Future[None] | None = None
        self.started = 0.0
        self.lock = threading.Lock()

    def run(self) -> tuple[Decision, Certificate]:
        """The searches; the certificate runs beside them from the first plan in order on."""
        self.started = time.perf_counter()
        with ThreadPoolExecutor(max_workers=3) as pool:
            try:
                if self.options.order:
                    self._explore(pool)
                else:
                    self._keep_order(pool)
                # In the file's order nothing is left but to close the gap.
                if self.bound is not None and not self.options.order:
                    self._wait([self.bound])
                self.halt.set()
                if self.bound is not None:
                    self.bound.result()
            except KeyboardInterrupt:
                # Anytime: what was found by now is a whole answer.
                self.halt.set()
        if self.best is None:
            raise KeyboardInterrupt
        certificate = self._final_certificate()
        _LOG.info(
            "plan by %s after %.1f s; %s",
            self.source,
            time.perf_counter() - self.started,
            self._why_stopped(certificate),
        )
        return self.best, certificate

    def _why_stopped(self, certificate: Certificate) -> str:
        assert self.best is not None
        if self.best.feasible and self.best.extra_cost <= certificate.seconds * (1 + 1e-9):
            return "nothing can be cheaper"
        return "time is over" if self._left() <= 0 else "nothing more came"

    def _explore(self, pool: ThreadPoolExecutor) -> None:
        """One thread explores orders all the time, the other after a search in the file's order
        and from the plans of others."""
        free = SearchOptions(seed=self.options.seed, params=self.options.search)
        first = pool.submit(self._search, free, self.limit)
        fixed = pool.submit(
            self._search, replace(free, order=False), self.params.in_order * self.limit
        )
        self._wait([fixed])
        self._certify(pool)
        searches = [first]
        if self._left() > 0 and not self._closed():
            other = replace(free, seed=free.seed + 1)
            searches.append(pool.submit(self._follow_baselines, other))
        self._wait(searches)

    def _follow_baselines(self, options: SearchOptions) -> None:
        """Explore from what published planners decide, too."""
        until = self._left() - self.params.baselines * self.limit
        patient = self._left() - self.params.baselines_patient * self.limit
        found: list[Decision] = []

        def left() -> float:
            over = self.halt.is_set() or self._left() <= 0
            lost = self.best is None or not self.best.feasible
            return 0.0 if over else self._left() - (patient if lost else until)

        for name, decision in baseline_decisions(self.problem, left, self.params.one_baseline):
            found.append(decision)
            self._keep(decision, name)
        found.sort(key=lambda d: (not d.feasible, d.extra_cost if d.feasible else d.peak))
        starts = tuple(decision.sequence for decision in found[: self.params.followed])
        if self._left() > 0:
            self._search(replace(options, starts=starts), self._left())

    def _keep_order(self, pool: ThreadPoolExecutor) -> None:
        """Two stages of two searches in the file's order."""
        fixed = SearchOptions(order=False, seed=self.options.seed, params=self.options.search)
        for stage, share in enumerate((self.params.first_stage, 1.0)):
            if self._left() <= 0 or self._closed():
                return
            seconds = min(share * self.limit, self._left())
            futures = [
                pool.submit(self._search, replace(fixed, seed=fixed.seed + 2 * stage + k), seconds)
                for k in range(2)
            ]
            self._wait(futures)
            if stage == 0:
                self._certify(pool)
                if self.best is not None and self.best.feasible:
                    fixed = replace(fixed, begin=self.best.sequence)

    def _left(self) -> float:
        return self.limit - (time.perf_counter() - self.started)

    def _wait(self, futures: list[Future[None]]) -> None:
        """Join the searches, but stay open to Ctrl-C."""
        while True:
            done, pending = wait(futures, timeout=self.params.poll_seconds)
            for future in done:
                future.result()
            if not pending:
                return

    def _search(self, options: SearchOptions, seconds: float) -> None:
        decision = solve(
            self.problem, seconds, options, self._tell(), self._enough, self._meet(options)
        )
        self._keep(decision, "search")
        with self.lock:
            if not options.order and (self.fixed_best is None or better(decision, self.fixed_best)):
                self.fixed_best = decision

    def _meet(self, options: SearchOptions) -> Callable[[Ints], Ints] | None:
        """Searches that may move nodes go on from the best of all before their last part."""
        if not options.order:
            return None

        def meet(sequence: Ints) -> Ints:
            with self.lock:
                cost = self.problem.arrays.cost
                if self.shared is None or cost[sequence].sum() < cost[self.shared].sum():
                    self.shared = sequence
                return self.shared

        return meet

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
        closed = self.certificate.seconds > 0 and extra <= self.certificate.seconds * (1 + 1e-9)
        return self.halt.is_set() or (closed and not self.options.order)

    def _closed(self) -> bool:
        return self.best is not None and self.best.feasible and self._enough(self.best.extra_cost)

    def _certify(self, pool: ThreadPoolExecutor) -> None:
        """Begin to look for a bound, if there is anything to bound."""
        fixed = self.fixed_best
        if not self.options.certify or self._left() <= 0:
            return
        upper = fixed.extra_cost if fixed is not None and fixed.feasible else None
        if upper is None or upper > 0:
            self.bound = pool.submit(self._bound, self._left(), upper)

    def _bound(self, seconds: float, upper: float | None) -> None:
        from memplan.solver.bound.certify import lower_bound

        try:
            found = lower_bound(self.problem, seconds, upper, self.halt.is_set)
        except (ArithmeticError, ImportError, MemoryError, RuntimeError, ValueError) as error:
            # A plan is good without a bound; losing it to the bound's trouble would be worse.
            self.certificate = Certificate(0.0, f"none: the certificate failed ({error})")
            return
        with self.lock:
            if found.seconds > 0:
                self.certificate = Certificate(found.seconds, found.kind)
        if found.sequence is not None:
            self._consider(found.sequence)

    def _consider(self, sequence: Ints) -> None:
        """A plan that the certificate came upon, evaluated like any other."""
        # It knows nothing of recomputations that were asked for.
        if not self.problem.protected.any():
            self._keep(decide(self.problem, sequence), "certificate")

    def _keep(self, decision: Decision, source: str) -> None:
        """Remember a decision if it is the best so far, and who made it."""
        with self.lock:
            if self.best is not None and not better(decision, self.best):
                return
            self.best, self.source = decision, source
        base = self.problem.base_cost or 1.0
        if decision.feasible:
            _LOG.info("best so far: +%.3f%% by %s", 100 * decision.extra_cost / base, source)
        else:
            _LOG.info("nothing fits yet; lowest peak so far %d B by %s", decision.peak, source)

    def _final_certificate(self) -> Certificate:
        """Never a bound above the plan: a moved order is not what a fixed-order bound speaks of."""
        assert self.best is not None
        if not self.best.feasible or self.certificate.seconds <= self.best.extra_cost * (1 + 1e-9):
            return self.certificate
        share = 100 * self.certificate.seconds / max(self.problem.base_cost, 1e-300)
        return Certificate(
            0.0, f"order-free; with the file's node order kept it would be {share:.2f}%"
        )
