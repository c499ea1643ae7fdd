"""What published planners decide, one after the other, for a search that looks at their plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from memplan.solver.forms import without_forms
from memplan.solver.problem import Decision, Problem
from memplan.solver.strategies.dtr import Dtr
from memplan.solver.strategies.keepset import Baseline
from memplan.solver.strategies.knapsack import Knapsack
from memplan.solver.strategies.mincut import MinCut
from memplan.solver.strategies.segments import Segments


def baseline_decisions(
    problem: Problem, left: Callable[[], float], share: float = 0.6
) -> Iterator[tuple[str, Decision]]:
    """What published planners decide, by name, quickest first, while ``left()`` seconds are left.

    The search starts from their plans, too: where one of them has a better idea, ours is at least
    as good. Those that must know the forward nodes are left out where the problem does not say.
    Each is given ``share`` of the time left.
    """
    problem = without_forms(problem)
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
