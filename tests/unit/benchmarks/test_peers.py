"""The published planners: their plans are what they claim to be."""

import numpy as np
import pytest

from helpers.models import load_benchmark
from helpers.problems import Case
from helpers.steps import problem_of, random_step
from memplan.solver.evaluate import IMPOSSIBLE
from memplan.solver.problem import Ints
from memplan.solver.strategies.keepset import judge, step_of

_knapsack = load_benchmark("plans.knapsack")
Knapsack, Packing = _knapsack.Knapsack, _knapsack.Packing

SECONDS = 30.0


def embeds(longer: Ints, shorter: Ints) -> bool:
    """Whether ``shorter`` stands in ``longer``, in order."""
    rest = iter(longer.tolist())
    return all(node in rest for node in shorter.tolist())


@pytest.mark.parametrize("seed", range(20))
def test_the_original_sequence_stands_in_every_plan(seed: int) -> None:
    _, problem = random_step(seed)
    step, draw = step_of(problem), np.random.default_rng(seed)
    for share in (0.0, 0.5, 1.0):
        kept = {root for root in step.stash if draw.random() < share}
        sequence = step.sequence_for(kept)
        assert embeds(sequence, problem.start)
        assert judge(problem, sequence).peak < IMPOSSIBLE


def test_a_knapsack_against_all_subsets() -> None:
    draw = np.random.default_rng(5)
    for _ in range(20):
        values = draw.integers(1, 30, 8).astype(float)
        weights = draw.integers(0, 9, 8)
        packing = Packing(values.tolist(), weights.tolist(), most=20)
        subsets = (np.arange(256)[:, None] >> np.arange(8)) & 1
        for room in (0, 7, 20):
            best = (subsets @ values)[subsets @ weights <= room].max()
            chosen = packing.chosen(room)
            assert values[chosen].sum() == best
            assert weights[chosen].sum() <= room


def test_the_knapsack_frees_banned_nodes_that_do_not_fit() -> None:
    # m1 and m2 are banned; a share for one of them keeps the dearer one.
    case = Case("m1(x):400$2  m2(m1):400$7  loss(m2):0  g2(loss m2 m1):400  g1(g2 m1):400!")
    problem = problem_of(case, 1, intensive="m1 m2")
    plans = {
        share: case.text(Knapsack(budget=share).solve(problem, SECONDS).decision.sequence)
        for share in (40, 60, 100)
    }
    assert plans == {
        40: "m1 m2 loss m1 m2 g2 g1",
        60: "m1 m2 loss m1 g2 g1",
        100: "m1 m2 loss g2 g1",
    }
