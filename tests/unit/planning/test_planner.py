"""Plans from graphs: what is kept, forced, refused and said; and what is known of tensors."""

from dataclasses import replace

import numpy as np
import pytest

from helpers import checkpoints
from helpers.graphs import KIB, REUSING, TUNED, graph_of, names, open_text, tensor
from memplan.errors import InfeasibleError
from memplan.ir.phases import differentiated, find_phases
from memplan.ops.memory import semantics
from memplan.planning.certificate import certificate
from memplan.planning.labels import labels_of
from memplan.planning.late_views import late_views
from memplan.planning.plan import Plan
from memplan.planning.planner import PlanRequest, make_plan, prepare
from memplan.simulate.run_order import execution_order
from memplan.simulate.session import session_kind
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


@pytest.mark.parametrize(
    ("extra", "bound", "kind", "text"),
    [
        (
            0.0471,
            0.0459,
            "order-free",
            "at most 0.12 percentage points from optimal "
            "(certified: no plan in any order costs less than +4.59%)",
        ),
        (0.15878, 0.1587, "order-free", "at most 0.008 percentage points from optimal"),
        (0.1, 0.1, "for this node order", "optimal (certified: no plan for this node order"),
        (0.1, 0.0, "none: too large", "distance from optimal unknown (none: too large)"),
    ],
)
def test_how_far_a_plan_is_from_optimal(extra: float, bound: float, kind: str, text: str) -> None:
    assert certificate(extra, bound, kind).startswith(text)


def test_kinds_of_a_graph() -> None:
    graph = graph_of(checkpoints.STEP)
    labels = labels_of(graph, frozenset({1, 2}))
    unfit = {labels.names[t] for t in np.flatnonzero(labels.unfit)}
    assert unfit == {"d", "keep", "mean", "dev", "c"}
    assert labels.elements[labels.names.index("a")] == 1600
    assert labels.elements[labels.names.index("loss")] == 1
    assert np.flatnonzero(labels.differentiated).tolist() == [1, 2]


def test_gradients_flow_from_the_parameters_to_the_loss() -> None:
    model = open_text(checkpoints.STEP)
    found = {model.graph.nodes[k].name for k in differentiated(model.graph, model.phases)}
    assert found == {"mul", "drop", "norm", "cast", "masked", "sum"}  # not the mask
    without = replace(find_phases(model.graph), parameters=frozenset(), loss=None)
    assert differentiated(model.graph, without) == without.forward


SHAPE_IS_A_VIEW = """g (float[2,3] x) => (float y)
  <int64 six = {6}, int64[1] zero = {0}>
  { [exp] a = Exp (x) [u] shape = Unsqueeze (six, zero) [tanh] b = Tanh (a)
    [r] flat = Reshape (a, shape) [v] again = Unsqueeze (flat, zero) [neg] c = Neg (b)
    [sum] y = ReduceSum <keepdims = 0> (again) }"""
TWO_READERS = """g (float[2,3] x) => (float[6] y, float[6] z)
  <int64 six = {6}, int64[1] zero = {0}>
  { [u] shape = Unsqueeze (six, zero) [r] flat = Reshape (x, shape) [exp] y = Exp (flat)
    [abs] a = Abs (x) [s] other = Reshape (a, shape) [neg] z = Neg (other) }"""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (SHAPE_IS_A_VIEW, ["exp", "tanh", "neg", "u", "r", "v", "sum"]),
        (TWO_READERS, ["u", "r", "exp", "abs", "s", "neg"]),
    ],
)
def test_a_view_comes_behind_all_that_it_reads(text: str, names: list[str]) -> None:
    graph = graph_of(text)
    order = late_views(graph, list(execution_order(graph, TUNED)), semantics("cpu"))
    assert [graph.nodes[index].name for index in order] == names
