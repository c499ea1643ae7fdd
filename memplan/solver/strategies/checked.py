"""A strategy's answer, checked.

Cost, peak and whether it fits are evaluated anew here; whoever writes a model simulates it once
more, by code that knows nothing of the planner.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from memplan.errors import InfeasibleError, MemplanError
from memplan.solver.problem import Ints, Problem
from memplan.solver.strategy import Outcome, Progress, Strategy

TOO_LATE = "reads state after it is written over"


def checked(
    strategy: Strategy, problem: Problem, time_limit: float, progress: Progress | None
) -> Outcome:
    """What ``strategy`` answers within ``time_limit`` seconds, its decision judged by us.

    Raises:
        UsageError: the strategy cannot work on this problem, and says so.
        InfeasibleError: it recomputes from state that is already written over.
        MemplanError: it answers with what is not a sequence of the problem; our bug.
    """
    outcome = strategy.solve(problem, time_limit, progress)
    sequence = outcome.decision.sequence
    reason = why_not_a_sequence(problem, sequence)
    if reason == TOO_LATE:
        raise InfeasibleError(
            f"strategy '{strategy.name}' recomputes from weights that are already renewed in place",
            "take another strategy (--strategy auto), or two buffers (--state apart)",
        )
    if reason:
        raise MemplanError(
            f"strategy '{strategy.name}' answers with a sequence that {reason}",
            "this is a bug in memplan; -vv shows where",
        )
    # numba is slow to import: only when there is something to plan.
    from memplan.solver.evaluate import decide

    return replace(outcome, decision=decide(problem, sequence))


def why_not_a_sequence(problem: Problem, sequence: Ints) -> str:
    """What keeps ``sequence`` from being one of the problem; empty: nothing."""
    from memplan.solver.evaluate import IMPOSSIBLE, evaluate

    count = len(problem.arrays.cost)
    # The evaluator is compiled and checks no index.
    if len(sequence) and not 0 <= sequence.min() <= sequence.max() < count:
        return f"names nodes beyond 0 to {count - 1}"
    runs = np.bincount(sequence, minlength=count)
    if (runs[problem.order] == 0).any():
        return "leaves out nodes of the step"
    asked = np.bincount(problem.start, minlength=count)
    arrays = problem.arrays
    again = np.isin(np.arange(count), np.concatenate((arrays.maker, arrays.others)))
    again[[node for form in problem.forms for node in form.encode]] = True
    if (runs > asked)[~again].any():
        return "recomputes nodes that must not be"
    if problem.leaves_out_asked(sequence):
        return "leaves out recomputations that were asked for"
    ordered = np.ascontiguousarray(sequence, dtype=np.int64)
    if evaluate(problem.arrays, ordered).total.max(initial=0) < IMPOSSIBLE:
        return ""
    free = problem.arrays._replace(overwriter=np.zeros(0, np.int64))
    if evaluate(free, ordered).total.max(initial=0) < IMPOSSIBLE:
        return TOO_LATE
    return "reads tensors before they are made"
