"""What the searches of one run share: the best plan, the best bound, and whether that is enough."""

from __future__ import annotations

import logging
import math
import threading
from dataclasses import dataclass

from memplan.solver.bound.order_free import ORDER_FREE
from memplan.solver.evaluate import decide
from memplan.solver.problem import Decision, Ints, Problem, better
from memplan.solver.strategy import Progress

_LOG = logging.getLogger(__name__)

# Rounding of sums of seconds, and what bounds are lowered by for the errors of the solver.
_TOLERANCE = 2e-6


@dataclass(frozen=True, slots=True)
class Certificate:
    """A lower bound on the extra cost in seconds, and what it holds for."""

    seconds: float
    kind: str


NO_CERTIFICATE = Certificate(0.0, "trivial")

# What a certificate in trouble raises; the plan is kept.
TROUBLE = (ArithmeticError, ImportError, MemoryError, RuntimeError, ValueError)


def contradicted(what: str) -> None:
    """A bound above a plan: a bug of ours, told in the log and in the report. Tests fail on it."""
    _LOG.error("the certificate contradicts a plan: %s", what)


class Incumbent:
    """The best plan and the best bound; several threads report here, whatever they find as soon as
    they find it.

    ``gap``: a plan whose extra cost is within this share of the step above the bound is enough.
    ``progress``: told of every better plan that fits. While nothing fits, the best is what has the
    lowest peak.
    """

    def __init__(self, problem: Problem, gap: float, progress: Progress | None = None) -> None:
        self.problem, self.gap, self.progress = problem, gap, progress
        self.best = decide(problem, problem.start)
        self.source = "the order as it is"
        for sequence in problem.known:
            found = decide(problem, sequence)
            if better(found, self.best):
                self.best, self.source = found, "a search before this one"
        self.bound = NO_CERTIFICATE
        self.lock = threading.Lock()

    @property
    def base(self) -> float:
        """Seconds of the step."""
        return self.problem.base_cost or 1.0

    @property
    def fits(self) -> bool:
        """Whether there is a plan that keeps the budget."""
        return self.best.feasible

    @property
    def sequence(self) -> Ints:
        """Where the certificate looks: the best plan that fits, else the problem's order."""
        return self.best.sequence if self.fits else self.problem.order

    @property
    def proven_impossible(self) -> bool:
        """Whether the bound says that nothing keeps the budget."""
        return math.isinf(self.bound.seconds)

    def keep(self, decision: Decision, source: str) -> None:
        """Remember a decision if it is the best so far, and who made it.

        One that leaves out recomputations that were asked for, as the certificate's plans may, is
        not a decision of the problem.
        """
        if self.problem.leaves_out_asked(decision.sequence):
            return
        with self.lock:
            if not better(decision, self.best):
                return
            self.best, self.source = decision, source
            if not decision.feasible:
                _LOG.info("nothing fits yet; lowest peak so far %d B by %s", decision.peak, source)
                return
            extra = decision.extra_cost / self.base
            _LOG.info("best so far: +%.3f%% by %s", 100 * extra, source)
            if self.progress is not None:
                self.progress(decision.peak, extra)

    def learn(self, seconds: float, kind: str = ORDER_FREE) -> None:
        """Remember a bound if it is the best so far."""
        with self.lock:
            if seconds > self.bound.seconds:
                self.bound = Certificate(seconds, kind)

    def without_bound(self, error: Exception) -> None:
        """A plan is good without a bound; losing it to the bound's trouble would be worse."""
        with self.lock:
            self.bound = Certificate(0.0, f"none: the certificate failed ({error})")

    def wanted(self) -> float:
        """The bound at which the best plan is enough, in seconds."""
        return self.best.extra_cost - self.gap * self.base if self.fits else math.inf

    @property
    def closed(self) -> bool:
        """Whether nothing is left to do."""
        if not self.fits:
            return self.proven_impossible
        return self.best.extra_cost * (1 - _TOLERANCE) <= self.bound.seconds + self.gap * self.base

    def why_stopped(self, late: bool) -> str:
        """For the log."""
        if self.closed:
            return "nothing can be much cheaper" if self.gap else "nothing can be cheaper"
        return "time is over" if late else "nothing more came"

    def certificate(self) -> Certificate:
        """The bound, in the end: never above the plan, and none where it contradicts it."""
        if not self.fits or math.isinf(self.bound.seconds):
            return self.bound
        extra, slack = self.best.extra_cost, 1e-6 * self.base
        if self.bound.seconds > extra + slack:
            contradicted(f"{self.bound} but a plan costs {extra}")
            return Certificate(0.0, "none: the certificate contradicts the plan; please report it")
        return Certificate(min(self.bound.seconds, extra), self.bound.kind)
