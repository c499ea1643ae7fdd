"""Training steps as abstract problems, and what every plan for them must hold."""

from dataclasses import replace

import numpy as np
import pytest

from helpers.problems import Case, Op
from memplan.solver.evaluate import IMPOSSIBLE, evaluate
from memplan.solver.problem import NONE, Decision, Problem


def chain(length: int) -> Case:
    """A step of unit nodes: the gradient of every node reads what the node made."""
    forward = [Op(f"f{k}", f"f{k - 1}" if k > 1 else "x") for k in range(1, length + 1)]
    backward = [
        Op(f"b{k}", f"f{k} " + (f"b{k + 1}" if k < length else "loss"), output=k == 1)
        for k in range(length, 0, -1)
    ]
    return Case(*forward, f"loss(f{length})", *backward)


def problem_of(
    case: Case,
    budget: int,
    last: str = "loss",
    intensive: str = "",
    start: str = "",
    protected: str = "",
) -> Problem:
    """A problem whose forward part ends with the node ``last``."""
    names = [op.name for op in case.ops]
    return replace(
        case.problem(budget, start, protected),
        forward=np.arange(len(names)) <= names.index(last),
        intensive=np.isin(names, intensive.split()),
    )


def check(problem: Problem, decision: Decision, case: Case) -> None:
    """What a decision says of itself is so, and every node of the step runs."""
    totals = evaluate(case.arrays, decision.sequence).total
    assert totals.max() < IMPOSSIBLE  # else something is read before it is made
    assert decision.peak == totals.max()
    assert decision.feasible == (decision.peak <= problem.budget)
    cost = case.arrays.cost[decision.sequence].sum() - problem.base_cost
    assert decision.extra_cost == pytest.approx(max(0.0, cost))
    runs = np.bincount(decision.sequence, minlength=len(case.ops))
    asked = np.bincount(problem.start, minlength=len(case.ops))
    assert runs[problem.order].min() >= 1
    assert (runs >= asked)[problem.protected].all()
    again = {int(node) for node in case.arrays.maker if node != NONE}
    assert set(np.flatnonzero(runs > asked).tolist()) <= again


def random_step(seed: int, length: int = 24) -> tuple[Case, Problem]:
    """A forward graph with views, in-place outputs, noise and skips, and a backward for it."""
    draw = np.random.default_rng(seed)
    ops = [Op("f0", "x", 4, 2.0)]
    for k in range(1, length):
        near, far = f"f{k - 1}", f"f{draw.integers(0, k)}"
        size, cost = int(draw.integers(1, 9)), float(draw.integers(1, 10))
        kind = draw.choice(["", "", "", "inplace", "view", "noise", "two", "shape"])
        reads = near if draw.random() < 0.4 or kind == "shape" else f"{near} {far}"
        ops.append(
            Op(
                f"f{k}",
                reads,
                nbytes=0 if kind == "view" else size,
                cost=0.0 if kind == "view" else cost,
                like=str(kind) if kind in ("view", "inplace") else "",
                workspace=int(draw.integers(0, 3)),
                again=kind not in ("noise", "shape"),
                eager=kind == "shape",
                output=bool(draw.random() < 0.05) and kind != "view",
                droppable=bool(draw.random() < 0.5),
                more=((f"m{k}", 1),) if kind == "two" else (),
            )
        )
    ops.append(Op("loss", f"f{length - 1}", 1))
    grad = "loss"
    for k in range(length - 1, -1, -1):
        extra = f" m{k}" if ops[k].more and draw.random() < 0.5 else ""
        ops.append(Op(f"b{k}", f"{grad} f{k}{extra}", int(draw.integers(1, 5)), output=k == 0))
        grad = f"b{k}"
    for k in range(1, length, 5):
        if not ops[k].again and not ops[k].eager and not ops[k].more:
            source = ops[k].reads.split()[0]
            ops.append(Op(f"r{k}", source, ops[k].nbytes, 1.5, rebuilds=f"f{k}"))
    case = Case(*ops)
    peak = case.peak(case.order)
    share = float(draw.choice([0.5, 0.7, 0.9]))
    problem = problem_of(case, int(share * peak))
    problem.intensive[:length] = draw.random(length) < 0.3
    return case, problem


def irregular(seed: int, length: int = 40) -> Case:
    """A random problem on which the search has something to search for."""
    draw = np.random.default_rng(seed)
    ops = [Op("n0", "x", 4, 2.0)]
    for k in range(1, length):
        near = f"n{k - 1}"
        far = f"n{draw.integers(0, k)}"
        size, cost = int(draw.integers(1, 9)), float(draw.integers(1, 10))
        ops.append(Op(f"n{k}", near if draw.random() < 0.3 else f"{near} {far}", size, cost))
    return Case(*ops)
