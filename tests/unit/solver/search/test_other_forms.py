"""Moves that keep a tensor in another form: the form is made early, where the tensor still is."""

from dataclasses import replace

import numpy as np

from helpers.every_order import asked_case
from memplan.deadline import Deadline
from memplan.solver.evaluate import evaluate
from memplan.solver.search.anytime import solve
from memplan.solver.search.params import SearchOptions
from memplan.solver.strategies.checked import why_not_a_sequence


def test_plans_with_other_forms_are_sequences_of_their_problems() -> None:
    used = cheaper = 0
    for seed in range(200):
        asked = asked_case(seed)
        if not asked.forms:
            continue
        peak = int(evaluate(asked.case.arrays, asked.start).total.max())
        for share in (0.6, 0.8):
            problem = asked.problem(int(share * peak))
            # What is asked for besides may be lost by a search; the incumbent looks at that.
            problem = replace(problem, start=problem.order, protected=problem.movable & False)
            for order in (False, True):
                options = SearchOptions(order=order, iterations=6)
                found = solve(problem, Deadline(), options)
                assert not why_not_a_sequence(problem, found.sequence), seed
                used += bool(np.isin([form.decode for form in asked.forms], found.sequence).any())
                cheaper += found.feasible
    assert used > 5
    assert cheaper > used
