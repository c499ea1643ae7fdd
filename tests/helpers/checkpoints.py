"""Problems with named and marked tensors, and the plans of checkpoint strategies."""

from dataclasses import replace

import numpy as np

from helpers.problems import Case
from helpers.steps import check
from memplan.solver.problem import Labels, Problem
from memplan.solver.strategies.builtin import parse_strategy

SECONDS = 30.0


def labelled(
    case: Case,
    problem: Problem,
    marked: str = "",
    unfit: str = "",
    aside: str = "",
    small: str = "",
) -> Problem:
    """The problem with labels: big tensors but the ``small``, nodes on the way but ``aside``."""
    names = tuple(case.tensors)
    assert problem.forward is not None
    ops = [op.name for op in case.ops]
    labels = Labels(
        names,
        np.isin(names, marked.split()),
        np.where(np.isin(names, small.split()), 5, 2000),
        np.isin(names, unfit.split()),
        problem.forward & ~np.isin(ops, aside.split()),
    )
    return replace(problem, labels=labels)


def plan(case: Case, problem: Problem, name: str) -> str:
    """The sequence, after the checks that every decision must pass."""
    decision = parse_strategy(name).solve(problem, SECONDS).decision
    check(problem, decision, case)
    return case.text(decision.sequence)


STEP = """
g (float[40, 40] x, float[40, 40] w, float[40, 40] v) => (float loss, float[40, 40] w_grad)
<float one = {1.0}, int64[2] axes = {0, 1}>
{
    [mask] m = Relu(x)
    [mul] a = MatMul(x, w)
    [drop] d, keep = Dropout(a)
    [norm] n, mean, dev = LayerNormalization(d, v)
    [cast] c = Cast<to = 1>(n)
    [masked] h = Mul(c, m)
    [sum] loss = ReduceSum<keepdims = 0>(h, axes)
    [back] hg = Mul(h, m)
    [end] w_grad = Mul(hg, a)
    [more] unused = Mul(mean, dev)
}"""
