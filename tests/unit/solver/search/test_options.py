"""What ends a search, and what it depends on."""

import pytest

from helpers.problems import LONG_SKIP, Case, Clock
from helpers.steps import irregular
from memplan.deadline import Deadline
from memplan.solver.evaluate import decide
from memplan.solver.problem import Decision, Ints
from memplan.solver.search.anytime import solve
from memplan.solver.search.params import RoundParams, SearchOptions, SearchParams

FIXED = SearchOptions(order=False, iterations=40)
SECONDS = 30.0  # far more than any of these needs: they end by iterations


def run(case: Case, share: float, clock: Clock, options: SearchOptions) -> Decision:
    """Solve for a budget between the largest node and the peak, by a clock of one's own."""
    working = [
        sum(case.arrays.nbytes[t] for t in {*case.arrays.reads[a:b].tolist(), case.resident + k})
        for k, (a, b) in enumerate(
            zip(case.arrays.read_start[:-1], case.arrays.read_start[1:], strict=True)
        )
    ]
    low, high = max(working), case.peak(case.order)
    budget = int(low + share * (high - low))
    return solve(case.problem(budget), Deadline(1e6, clock), options)


PARTS_OFF = {
    "none": SearchParams(),
    "other starts": SearchParams(starts=0),
    "another search from the best few": SearchParams(best_few=0),
    "beams": SearchParams(longest_beam=0),
    "shaken plans while exploring": SearchParams(new_order_every=1),
    "easing": SearchParams(ease_calls=0),
    "moves of nodes": SearchParams(moving=0.0, moving_clones=0.0),
    "annealing": SearchParams(heat=0.0),
    "scattered ruins": SearchParams(rounds=RoundParams(scattered=0.0)),
    "ruined stretches": SearchParams(rounds=RoundParams(stretch=0.0)),
    "thinning": SearchParams(rounds=RoundParams(thinned=0.0)),
    "ruins of one node": SearchParams(rounds=RoundParams(thinned=0.25)),
    "random factors": SearchParams(rounds=RoundParams(exact=1.0)),
    "last moves": SearchParams(rounds=RoundParams(last_moves=0)),
    "going back": SearchParams(rounds=RoundParams(back_every=0)),
}


@pytest.mark.parametrize("params", PARTS_OFF.values(), ids=PARTS_OFF)
def test_every_part_can_be_switched_off_alone(params: SearchParams) -> None:
    """And with counted rounds the seed alone decides, not the speed of the machine."""
    for order in (True, False) if params == SearchParams() else (True,):
        options = SearchOptions(order=order, seed=7, iterations=20, params=params)
        first, again = (run(irregular(3), 0.6, Clock(step), options) for step in (0.01, 1.0))
        assert first.feasible
        assert first.sequence.tolist() == again.sequence.tolist()


def test_the_caller_can_say_what_is_enough() -> None:
    told: list[float] = []

    def enough(extra: float) -> bool:
        told.append(extra)
        return True

    decision = solve(LONG_SKIP.problem(8), Deadline(), FIXED, enough=enough)
    assert decision.feasible
    assert told


def test_every_better_plan_is_told() -> None:
    told: list[Ints] = []
    problem = LONG_SKIP.problem(8)
    solve(problem, Deadline(), FIXED, found=told.append)
    decisions = [decide(problem, sequence) for sequence in told]
    assert all(each.feasible for each in decisions)
    assert decisions[-1].peak == 8
    assert decisions[-1].extra_cost == pytest.approx(1.0)
    costs = [each.extra_cost for each in decisions]
    assert costs == sorted(costs, reverse=True)
