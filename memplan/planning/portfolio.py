"""Several searches at once: the file's order kept, nodes moved, and a certificate beside them.

The compiled search and HiGHS both release Python's global lock, so threads use the cores. Without
a time limit (``iterations``) everything runs one after the other and depends on the seed alone.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from memplan.planning.problem import Decision, Problem
from memplan.planning.search import Progress, SearchOptions, solve

# The first stage explores both kinds of order; the second goes on from the better result.
_FIRST_STAGE = 0.4
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class PortfolioOptions:
    """``order``: nodes may be moved. ``certify``: look for a lower bound beside the search."""

    order: bool = True
    seed: int = 0
    iterations: int = 0
    certify: bool = True


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
    fixed = SearchOptions(order=False, seed=options.seed, iterations=options.iterations)
    best = solve(problem, limit, fixed, progress)
    if options.order:
        moved = solve(problem, limit, replace(fixed, order=True), progress)
        best = moved if better(moved, best) else best
    return best


def better(first: Decision, second: Decision) -> bool:
    """Whether the first decision is preferable: feasible, then cheap, then low."""
    if first.feasible != second.feasible:
        return first.feasible
    if first.feasible:
        return first.extra_cost < second.extra_cost
    return first.peak < second.peak


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
        self.limit = time_limit
        self.halt = threading.Event()
        self.best: Decision | None = None
        self.fixed_best: Decision | None = None
        self.certificate = NO_CERTIFICATE
        self.lock = threading.Lock()

    def run(self) -> tuple[Decision, Certificate]:
        """Two stages of searches; the certificate runs through both."""
        started = time.perf_counter()
        with ThreadPoolExecutor(max_workers=3) as pool:
            try:
                self._stage(pool, self._first_stage(), _FIRST_STAGE * self.limit)
                bound = self._certify(pool, started)
                left = self.limit - (time.perf_counter() - started)
                if left > 0 and not self._closed():
                    self._stage(pool, self._second_stage(), left)
                self.halt.set()
                if bound is not None:
                    bound.result()
            except KeyboardInterrupt:
                # Anytime: what was found by now is a whole answer.
                self.halt.set()
        if self.best is None:
            raise KeyboardInterrupt
        return self.best, self._final_certificate()

    def _first_stage(self) -> list[SearchOptions]:
        fixed = SearchOptions(order=False, seed=self.options.seed)
        return [fixed, replace(fixed, order=True)] if self.options.order else [
            fixed, replace(fixed, seed=fixed.seed + 1)
        ]  # fmt: skip

    def _second_stage(self) -> list[SearchOptions]:
        assert self.best is not None
        seed = self.options.seed + 10
        begin = self.best.sequence if self.best.feasible else None
        first = SearchOptions(order=self.options.order, seed=seed, begin=begin)
        return [first, replace(first, seed=seed + 1, order=False)]

    def _stage(
        self, pool: ThreadPoolExecutor, searches: list[SearchOptions], seconds: float
    ) -> None:
        futures = [pool.submit(self._search, options, seconds) for options in searches]
        self._wait(futures)

    def _wait(self, futures: list[Future[None]]) -> None:
        """Join the searches, but stay open to Ctrl-C."""
        while True:
            done, pending = wait(futures, timeout=_POLL_SECONDS)
            for future in done:
                future.result()
            if not pending:
                return

    def _search(self, options: SearchOptions, seconds: float) -> None:
        decision = solve(self.problem, seconds, options, self._tell(), self._enough)
        with self.lock:
            if self.best is None or better(decision, self.best):
                self.best = decision
            fixed = not options.order and options.begin is None
            if fixed and (self.fixed_best is None or better(decision, self.fixed_best)):
                self.fixed_best = decision

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

    def _certify(self, pool: ThreadPoolExecutor, started: float) -> Future[None] | None:
        fixed = self.fixed_best
        if not self.options.certify or fixed is None or not fixed.feasible:
            return None
        if fixed.extra_cost <= 0:
            return None
        seconds = max(0.1, self.limit - (time.perf_counter() - started))
        return pool.submit(self._bound, seconds, fixed.extra_cost)

    def _bound(self, seconds: float, upper: float) -> None:
        from memplan.planning.certificate import lower_bound

        try:
            found = lower_bound(self.problem, seconds, upper, self.halt.is_set)
        except (ArithmeticError, ImportError, MemoryError, RuntimeError, ValueError) as error:
            # A plan is good without a bound; losing it to the bound's trouble would be worse.
            self.certificate = Certificate(0.0, f"none: the certificate failed ({error})")
            return
        with self.lock:
            self.certificate = Certificate(found.seconds, found.kind)

    def _final_certificate(self) -> Certificate:
        """Never a bound above the plan: a moved order is not what a fixed-order bound speaks of."""
        assert self.best is not None
        if not self.best.feasible or self.certificate.seconds <= self.best.extra_cost * (1 + 1e-9):
            return self.certificate
        share = 100 * self.certificate.seconds / max(self.problem.base_cost, 1e-300)
        return Certificate(
            0.0, f"order-free; with the file's node order kept it would be {share:.2f}%"
        )
