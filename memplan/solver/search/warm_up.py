"""The machine code, loaded or compiled before any clock runs."""

from __future__ import annotations

import numpy as np

from memplan.deadline import Deadline
from memplan.solver.build import Output, ProblemBuilder
from memplan.solver.cache import before_compiling
from memplan.solver.jit import is_cold
from memplan.solver.order.beam import resequence
from memplan.solver.order.local import reorder
from memplan.solver.problem import Problem
from memplan.solver.search.anytime import AnytimeSearch
from memplan.solver.search.neighbourhood import improve
from memplan.solver.search.params import ROUNDS, SearchOptions


def warm_up() -> None:
    """Load (or, once per version, compile) the machine code, so that no time limit pays for it."""
    while before_compiling and is_cold():
        before_compiling.pop()()
    problem = tiny_problem()
    arrays, order, flags = problem.arrays, problem.order, problem.movable
    AnytimeSearch(problem, Deadline(0.0), SearchOptions(order=False, iterations=1)).run()
    no = np.zeros(1, np.bool_)
    improve(arrays, order, order, flags, ~flags, flags, arrays.cost, 4, 0, 0.0, 0.0, ROUNDS, no)
    reorder(arrays, order, flags, 3, 0)
    resequence(arrays, order, flags, 3, 1, 0.0)


def tiny_problem() -> Problem:
    """Three nodes, one of which may be recomputed."""
    build = ProblemBuilder()
    for nbytes, alike in ((2, 0), (1, 1), (1, 1)):
        build.add_tensor(nbytes, alike=alike)
    for node, (reads, workspace) in enumerate((((), 0), ((0,), 2), ((0, 1), 0))):
        build.add_node(1.0, reads, [Output(node, fleeting=True)], workspace=workspace)
    arrays = build.build()._replace(maker=np.array([0, 1, 2]))
    order, flags = np.array([0, 1, 2]), np.ones(3, np.bool_)
    return Problem(arrays, order, 4, order, ~flags, flags)
