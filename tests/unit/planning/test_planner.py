"""Plans from graphs: what is kept, forced, refused and said."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.graphs import KIB, REUSING, TUNED, graph_of, names, tensor
from memplan.errors import InfeasibleError
from memplan.planning.plan import Plan
from memplan.planning.planner import PlanRequest, make_plan, prepare, without_unread
from memplan.simulate.session import session_kind
from memplan.solver.evaluate import decide
from memplan.solver.strategies.builtin import parse_strategy

SECONDS = 30.0  # far more than any of these needs: they end by iterations


STEP = """
g (float[256] x) => (float[256] y) <int64[1] all = {0}>
{
    [stash] a = Exp(x)
    [noise] n = RandomNormalLike(x)
    [double] b = Concat<axis = 0>(a, n)
    [middle] c = Neg(b)
    [sum] s = ReduceSum(c, all)
    [use] y = Add(a, s)
}"""


def planned(
    budget_kib: float, *, keep: str = "", force: str = "", strategy: str = "greedy"
) -> Plan:
    """The plan for :data:`STEP`; every node costs a second but Exp, which costs a quarter."""
    graph = graph_of(STEP)
    request = PlanRequest(
        graph,
        TUNED,
        int(budget_kib * KIB),
        lambda extended: [1.0] * len(extended.nodes),
        costs={"stash": 0.25, "no such node": 9.0},
        keep=frozenset(tensor(graph, name).id for name in keep.split()),
        force=frozenset(tensor(graph, name).id for name in force.split()),
    )
    return make_plan(prepare(request), parse_strategy(strategy), SECONDS)


def test_a_plan_from_a_graph() -> None:
    # x and eight bytes are resident. At middle: a, b and c; without a 4 KiB are left.
    plan = planned(5.5)
    assert names(plan.extended.graph, plan.sequence) == [
        "stash",
        "noise",
        "double",
        "middle",
        "sum",
        "stash",
        "use",
    ]
    assert plan.recomputed == {"stash": 1}
    assert plan.clones == 1
    assert plan.extra_cost_fraction == pytest.approx(0.25 / 5.25)
    assert plan.resident_bytes == KIB + 8
    assert plan.predicted_peak_bytes == 5 * KIB + 8
    assert plan.refusals == {"noise": "draws random numbers"}
    assert plan.strategy == "greedy"


def test_recomputations_that_nobody_reads_are_taken_out() -> None:
    """``middle`` once more for nobody goes; ``stash`` once more for ``use`` stays."""
    graph = graph_of(STEP)
    prepared = prepare(PlanRequest(graph, TUNED, 8 * KIB, lambda g: [1.0] * len(g.nodes)))
    problem = prepared.encoded.problem(8 * KIB)
    ids = {node.name: node.id for node in prepared.extended.graph.nodes}
    order = problem.order.tolist()
    assert order[-1] == ids["use"]
    for again, left in (("middle", order), ("stash", [*order[:-1], ids["stash"], order[-1]])):
        sequence = np.asarray([*order[:-1], ids[again], order[-1]])
        assert without_unread(problem, decide(problem, sequence)).sequence.tolist() == left


def test_a_plan_that_needs_nothing() -> None:
    plan = planned(7)
    assert plan.clones == 0
    assert plan.recomputed == {}
    assert plan.extra_cost_fraction == 0
    assert list(plan.sequence) == list(range(6))


def test_what_is_to_be_kept_is_not_recomputed() -> None:
    with pytest.raises(InfeasibleError) as caught:
        planned(5.5, keep="a")
    assert caught.value.message == (
        "no plan found within 5,632 B; the lowest peak reached is 6,152 B (6.01 KiB)"
    )
    assert caught.value.hint.startswith("try 6,152 B, or a little more; the certified floor")


def test_what_is_to_be_recomputed_is_whatever_the_budget() -> None:
    plan = planned(100, force="a")
    assert plan.recomputed == {"stash": 1}
    assert plan.extra_cost_fraction == pytest.approx(0.25 / 5.25)
    assert plan.predicted_peak_bytes == 5 * KIB + 8


def test_a_tensor_that_must_not_run_again_is_not_forced() -> None:
    assert planned(100, force="n").clones == 0


def test_below_the_floor_nothing_is_tried() -> None:
    with pytest.raises(InfeasibleError, match="is below the floor 5,128 B") as caught:
        planned(4.5)
    assert (
        "Concat double, which needs b (2.00 KiB), a (1.00 KiB), n (1.00 KiB) at once"
        in caught.value.hint
    )


def test_plans_are_for_sessions_in_file_order_without_reuse() -> None:
    graph = graph_of(STEP)
    for session in (session_kind("default"), REUSING):
        with pytest.raises(ValueError, match="tuned"):
            prepare(PlanRequest(graph, session, KIB, lambda g: [1.0] * len(g.nodes)))
