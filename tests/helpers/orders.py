"""Orders of small problems."""

from __future__ import annotations

from helpers.problems import Case, Op
from memplan.solver.evaluate import evaluate, excess_of
from memplan.solver.problem import Ints, Problem

# Two chains that meet: run one after the other, only one of them is ever open.
CHAINS = Case(
    Op("a", "x", 8),
    Op("c", "x", 8),
    Op("b", "a", 1),
    Op("d", "c", 1),
    Op("end", "b d", 1, output=True),
    resident="x",
)


def excess(problem: Problem, sequence: Ints) -> float:
    """Bytes over the budget, summed over steps."""
    return float(excess_of(evaluate(problem.arrays, sequence), problem.budget))
