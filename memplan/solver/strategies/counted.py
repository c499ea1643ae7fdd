"""The portfolio by rounds, not by the clock: the same plan on every machine and under every load.

Searches and certificate take turns in one thread; HiGHS is given nodes of its tree instead of
seconds.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.solver.bound.milp import Effort
from memplan.solver.bound.order_free import OrderFreeBound, OrderFreeParams
from memplan.solver.evaluate import decide
from memplan.solver.forms import stripped, with_all_encoded, with_forms, without_last_kind
from memplan.solver.problem import Decision, Problem
from memplan.solver.search.anytime import solve
from memplan.solver.search.lowest_peak import lowest_peak, solve_from
from memplan.solver.search.params import SearchOptions
from memplan.solver.strategies.standing import TROUBLE, Certificate, Standing
from memplan.solver.strategy import Progress

if TYPE_CHECKING:
    from memplan.solver.strategies.portfolio import PortfolioOptions

# Nodes of the branch-and-bound tree per program, and turns of certificate and searches.
_TREE, _TURNS = 30, 2
# Plans of solutions that are searched from, per turn.
_FOLLOWED = 2


def certificate_params(rounds: int) -> OrderFreeParams:
    """How hard the certificate works beside ``rounds`` of a search. Programs in whole numbers take
    longer than the search itself, so there are few, and none for a handful of rounds."""
    return OrderFreeParams(
        looks=min(8, 1 + rounds // 6),
        solved=0 if rounds < 10 else 1 if rounds < 50 else 2,
        most_events=1 if rounds < 50 else 2,
    )


def solve_counted(
    problem: Problem,
    time_limit: float,
    options: PortfolioOptions,
    progress: Progress | None = None,
) -> tuple[Decision, Certificate]:
    """The best sequence after ``options.iterations`` rounds of every search, and its bound.

    Without rounds (``iterations`` 0) the searches end at ``time_limit`` seconds each, and nothing
    is certified.
    """
    standing = Standing(problem, options.gap if options.iterations else 0.0)
    limit = math.inf if options.iterations else time_limit
    fixed = SearchOptions(
        order=False, seed=options.seed, iterations=options.iterations, params=options.search
    )
    free = replace(fixed, order=options.order)

    if problem.forms:
        begin, _ = solve_counted(without_last_kind(problem), time_limit, options, progress)
        standing.keep(decide(problem, begin.sequence), "search among fewer forms")
        # Where there are several ways to make tensors again, what is found depends on the start.
        several = options.iterations and len(problem.arrays.others)
        searched = with_all_encoded(problem)
        for turn, from_best in enumerate((False, True, True) if several else (True,)):
            starts = (with_forms(problem, standing.sequence),) if from_best else ()
            seeded = replace(free, seed=free.seed + turn, starts=starts)
            found = solve(searched, limit, seeded, progress, standing.may_stop)
            standing.keep(decide(problem, stripped(problem, found.sequence)), "search")
            if standing.closed:
                break
    else:
        standing.keep(solve(problem, limit, fixed, progress, standing.may_stop), "search")
        if options.order and not standing.closed:
            standing.keep(solve(problem, limit, free, progress, standing.may_stop), "search")
    if options.iterations and not standing.fits:
        assert standing.best is not None
        found = lowest_peak(problem, standing.best, Effort(stop=lambda: standing.fits), free)
        standing.keep(found, "drive for the lowest peak")
    if options.iterations and options.certify and options.order:
        _certify(problem, standing, free, progress)
    assert standing.best is not None
    return standing.best, standing.certificate()


def _certify(
    problem: Problem, standing: Standing, options: SearchOptions, progress: Progress | None
) -> None:
    """Look at the bound where the best plan is full, search from its starts, and again."""
    searched, stop = with_all_encoded(problem), standing.may_stop
    try:
        order_free = OrderFreeBound(
            problem, Effort(nodes=_TREE), standing.learn, certificate_params(options.iterations)
        )
        for _ in range(_TURNS):
            if standing.closed:
                return
            followed = 0
            for start in order_free.look(standing.sequence, standing.wanted):
                if followed < _FOLLOWED and not standing.closed:
                    followed += 1
                    found = solve_from(
                        searched, with_forms(problem, start), math.inf, options, progress, stop
                    )
                    decision = decide(problem, stripped(problem, found.sequence))
                    standing.keep(decision, "certificate")
            if not order_free.fresh:
                return
    except TROUBLE as error:
        standing.without_bound(error)
