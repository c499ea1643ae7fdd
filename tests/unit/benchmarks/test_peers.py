"""The published planners: their plans are what they claim to be."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.models import SAMPLES, load_benchmark
from helpers.problems import Case
from helpers.steps import chain, check, problem_of, random_step
from helpers.training_steps import saved_step, with_dropout
from memplan.api.rewrite.rewriting import RewriteOptions, rewrite
from memplan.errors import InfeasibleError, UsageError
from memplan.ir.graph import Phase
from memplan.simulate.opened import open_model
from memplan.solver.evaluate import IMPOSSIBLE
from memplan.solver.problem import Ints
from memplan.solver.strategies.keepset import judge, step_of
from memplan.solver.strategies.mincut import MinCut
from memplan.solver.strategies.segments import Segments
from memplan.units import parse_size

peer_or_strategy = load_benchmark("plans.training_graphs").peer_or_strategy
_knapsack = load_benchmark("plans.knapsack")
Knapsack, Packing = _knapsack.Knapsack, _knapsack.Packing

SECONDS = 30.0
PEERS = (
    "segments",
    "segments{count=3}",
    "knapsack",
    "knapsack{budget=50}",
    "knapsack{cut=0}",
    "min-cut",
    "min-cut{ban=0}",
)


def embeds(longer: Ints, shorter: Ints) -> bool:
    """Whether ``shorter`` stands in ``longer``, in order."""
    rest = iter(longer.tolist())
    return all(node in rest for node in shorter.tolist())


@pytest.mark.parametrize("name", PEERS)
def test_plans_of_random_steps_are_what_they_say(name: str) -> None:
    lower = 0
    for seed in range(60):
        case, problem = random_step(seed)
        decision = peer_or_strategy(name).solve(problem, SECONDS).decision
        check(problem, decision, case)
        lower += decision.peak < case.peak(case.order)
    assert lower > 10  # else nothing was tried


@pytest.mark.parametrize("name", PEERS)
def test_recomputations_that_were_asked_for_stay(name: str) -> None:
    case = chain(8)
    start = "f1 f2 f3 f4 f5 f6 f7 f8 loss b8 b7 b6 b5 b4 b3 f2 b2 b1"
    for budget in (9, 7):
        problem = problem_of(case, budget, start=start, protected="f2")
        decision = peer_or_strategy(name).solve(problem, SECONDS).decision
        check(problem, decision, case)
        assert decision.sequence.tolist().count(case.place["f2"]) >= 2


@pytest.mark.parametrize("seed", range(20))
def test_the_original_sequence_stands_in_every_plan(seed: int) -> None:
    _, problem = random_step(seed)
    step, draw = step_of(problem), np.random.default_rng(seed)
    for share in (0.0, 0.5, 1.0):
        kept = {root for root in step.stash if draw.random() < share}
        sequence = step.sequence_for(kept)
        assert embeds(sequence, problem.start)
        assert judge(problem, sequence).peak < IMPOSSIBLE


@pytest.mark.parametrize("name", PEERS)
def test_a_budget_that_holds_changes_nothing(name: str) -> None:
    case = chain(6)
    decision = peer_or_strategy(name).solve(problem_of(case, 8), SECONDS).decision
    assert decision.sequence.tolist() == case.order.tolist()
    assert (decision.peak, decision.extra_cost, decision.feasible) == (8, 0.0, True)


@pytest.mark.parametrize("name", PEERS)
def test_time_that_is_over_is_respected(name: str) -> None:
    case, problem = random_step(1, 400)
    begin = time.process_time()
    decision = peer_or_strategy(name).solve(problem, 0.0).decision
    assert time.process_time() - begin < 2.0
    check(problem, decision, case)


def test_progress_is_told_of_plans_that_fit() -> None:
    told: list[tuple[int, float]] = []
    case = chain(9)
    decision = (
        Segments()
        .solve(problem_of(case, 8), SECONDS, lambda peak, extra: told.append((peak, extra)))
        .decision
    )
    assert told[-1] == (decision.peak, decision.extra_cost / 19)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("segments", Segments(0)),
        ("segments{count=4}", Segments(4)),
        ("knapsack{budget=30, cut=0}", Knapsack(30, 0)),
        ("min-cut{ban=0}", MinCut(0)),
    ],
)
def test_peers_by_name(text: str, wanted: object) -> None:
    assert peer_or_strategy(text) == wanted


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


def test_a_wrong_word_is_explained() -> None:
    with pytest.raises(UsageError) as caught:
        peer_or_strategy("knapsack{depth=3}")
    assert "depth" in caught.value.message


def test_encoding_tells_forward_and_intensive_nodes() -> None:
    from memplan.planning.planner import PlanRequest, prepare
    from memplan.simulate.session import session_kind

    model = open_model(SAMPLES / "unet.onnx")
    count: Callable[..., list[float]] = lambda graph: [1.0] * len(graph.nodes)  # noqa: E731
    request = PlanRequest(model.graph, session_kind("tuned", "cpu"), 0, count)
    assert prepare(request).encoded.problem(1).forward is None
    problem = prepare(replace(request, forward=model.phases.forward)).encoded.problem(1)
    assert problem.forward is not None
    assert problem.intensive is not None
    for node, phase in zip(model.graph.nodes, model.phases.of, strict=True):
        assert problem.forward[node.id] == (phase in (Phase.FORWARD, Phase.LOSS))
        if node.op in ("Conv", "ConvTranspose", "MatMul", "Relu", "Add"):
            assert problem.intensive[node.id] == (node.op not in ("Relu", "Add"))
    assert problem.forward.any()
    assert problem.intensive.any()


@pytest.mark.parametrize("name", ["segments", "segments{count=3}", "min-cut"])
def test_a_model_rewritten_by_a_peer_passes_every_check(name: str, tmp_path: Path) -> None:
    # The plan is written and simulated by code that knows nothing of planners.
    options = RewriteOptions(parse_size("85%"), strategy=name, optimize="none")
    result = rewrite(saved_step(with_dropout, tmp_path), options, dry_run=True)
    assert result.timeline.peak_with_workspace_bytes <= result.budget_bytes
    assert result.plan.strategy == name.partition("{")[0]
    assert result.plan.clones > 0


@pytest.mark.slow
def test_a_peer_that_does_not_fit_gives_no_model() -> None:
    # Everything runs again before the first gradient, and is then held as it was.
    options = RewriteOptions(parse_size("50%"), strategy="min-cut{ban=0}", optimize="none")
    with pytest.raises(InfeasibleError, match="no plan found"):
        rewrite(SAMPLES / "unet.onnx", options, dry_run=True)
