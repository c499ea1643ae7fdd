"""When Dropout can be rebuilt from its mask, and with which nodes and numbers."""

from dataclasses import replace

import numpy as np
import pytest

from helpers.graphs import TUNED, node, open_text, tensor
from helpers.plans import estimate
from memplan.ops.memory import refusal
from memplan.planning.encode_problem import encode, refusals
from memplan.planning.forms.dormant import Extended
from memplan.planning.forms.extend_graph import extend
from memplan.planning.forms.packed_masks import PACKED
from memplan.planning.planner import PlanRequest, make_plan, prepare
from memplan.shapes.fold import small_constants
from memplan.simulate.timeline import simulate
from memplan.solver.problem import Problem
from memplan.solver.strategies.builtin import parse_strategy

ALL = frozenset({PACKED})


def dropped(
    call: str = "d, m = Dropout(a, ratio, training)",
    *,
    constants: str = "float ratio = {0.25}, bool training = {1}",
    inputs: str = "",
    provider: str = "cpu",
    dtype: str = "float",
) -> Extended:
    """A Dropout between two nodes, with its mask read in the end, extended."""
    text = f"""
    g ({dtype}[256] x {inputs}) => ({dtype}[256] y) <{constants}>
    {{
        [a] a = Neg(x)
        [drop] {call}
        [b] b = Neg(d)
        [mf] mf = Cast<to = {1 if dtype == "float" else 10 if dtype == "float16" else 11}>(m)
        [y] y = Mul(b, mf)
    }}"""
    model = open_text(text)
    return extend(model.graph, small_constants(model.prepared.bound.graph), provider)


def encoded(found: Extended, keep: frozenset[int] = frozenset()) -> Problem:
    """The problem of a graph with its rules; every node costs a second."""
    live = replace(found.graph, nodes=found.graph.nodes[: found.first_dormant])
    return encode(found, simulate(live, TUNED), [1.0] * len(found.graph.nodes), keep)


ONE = np.float32(1)


@pytest.mark.parametrize("ratio", [0.25, 0.1, 0.5, 0.0, 0.9, None])
def test_the_scale_is_the_kept_share_or_its_inverse(ratio: float | None) -> None:
    """The kernel subtracts in float32; without a ratio it is a half."""
    given: dict[str, str] = {"constants": f"float ratio = {{{ratio}}}, bool training = {{1}}"}
    if ratio is None:
        given = {"call": 'd, m = Dropout(a, "", training)', "constants": "bool training = {1}"}
    share = ONE - np.float32(0.5 if ratio is None else ratio)
    for provider, wanted in (("cpu", share), ("cuda", ONE / share)):
        (scale,) = dropped(**given, provider=provider).constants.values()
        assert (scale.dtype, scale.shape, scale) == (np.float32, (), wanted)


NOT_REBUILT = {
    "no mask": {"call": "d = Dropout(a, ratio, training)\n m = Greater(a, ratio)"},
    "not training": {"constants": "float ratio = {0.25}, bool training = {0}"},
    "training is data": {"constants": "float ratio = {0.25}", "inputs": ", bool training"},
    "no training flag": {"call": "d, m = Dropout(a, ratio)"},
    "ratio is data": {"constants": "bool training = {1}", "inputs": ", float ratio"},
    "float16": {"dtype": "float16"},
    "double": {"dtype": "double"},
}


@pytest.mark.parametrize("reason", NOT_REBUILT)
def test_no_rule_where_the_bits_could_differ(reason: str) -> None:
    found = dropped(**NOT_REBUILT[reason])
    assert found.makers == {}
    assert found.constants == {}
    assert len(found.graph.nodes) == found.first_dormant


def test_dropout_is_never_run_again_itself() -> None:
    assert refusal(":Dropout") == "draws random numbers"
    found = dropped()
    problem = encoded(found)
    graph, maker = found.graph, problem.arrays.maker
    assert refusals(graph, "cpu") == {node(graph, "drop").id: "draws random numbers"}
    assert maker[tensor(graph, "d").id] == node(graph, "drop/rebuild_scale").id
    assert maker[tensor(graph, "m").id] == -1
    assert maker[tensor(graph, "a").id] == node(graph, "a").id
    # Dormant nodes do not run of themselves, and are ranked between drop and its first reader.
    assert len(problem.order) == found.first_dormant
    own = "a drop drop/rebuild_cast drop/rebuild_mul drop/rebuild_scale b"
    ranks = [problem.arrays.rank[node(graph, name).id] for name in own.split()]
    assert ranks == sorted(set(ranks))


def test_what_is_to_be_kept_is_not_rebuilt() -> None:
    found = dropped()
    keep = frozenset({tensor(found.graph, "d").id})
    assert encoded(found, keep).arrays.maker[tensor(found.graph, "d").id] == -1


def test_names_of_an_earlier_rewrite_are_left_alone() -> None:
    """A file that was rewritten has the constants and nodes of the rule already."""
    once = dropped()
    scale = once.graph.tensors[once.graph.nodes[7].inputs[1]].name
    again = extend(
        replace(once.graph, nodes=once.graph.nodes[:5]),
        {"ratio": np.float32(0.25), "training": np.bool_(True)},  # type: ignore[dict-item]
        "cpu",
    )
    assert scale == "drop/rebuild_scale"
    assert set(again.constants) == {"drop/rebuild2_scale"}
    made = [n.name for n in again.graph.nodes[5:]]
    assert made == ["drop/rebuild2_cast", "drop/rebuild2_mul", "drop/rebuild2_scale"]


CHAIN = """
g (float[65536] x) => (float[] z) <float ratio = {0.25}, bool on = {1}>
{
    [d0] a0, m0 = Dropout<seed: int = 0>(x, ratio, on)
    [t0] t0 = Tanh(a0)
    [d1] a1, m1 = Dropout<seed: int = 1>(t0, ratio, on)
    [t1] t1 = Tanh(a1)
    [f1] f1 = Cast<to: int = 1>(m1)
    [h1] h1 = Mul(t1, f1)
    [g1] g1 = Mul(h1, a1)
    [f0] f0 = Cast<to: int = 1>(m0)
    [h0] h0 = Mul(g1, f0)
    [g0] g0 = Mul(h0, a0)
    [z] z = ReduceSum<keepdims: int = 0>(g0)
}
"""


@pytest.mark.parametrize("strategy", ["greedy", "search{iterations=3}"])
def test_what_is_asked_for_is_rebuilt_by_all_of_its_rule(strategy: str) -> None:
    """Neither a plan of the certificate nor half a rule takes its place."""
    model = open_text(CHAIN)
    wanted = frozenset({tensor(model.graph, "a0").id, tensor(model.graph, "a1").id})
    peak = simulate(model.graph, TUNED).peak_with_workspace_bytes
    values = small_constants(model.prepared.bound.graph)
    request = PlanRequest(model.graph, TUNED, peak, estimate, values, force=wanted, forms=ALL)
    plan = make_plan(prepare(request), parse_strategy(strategy), 10.0)
    rules = {f"{each}/rebuild_{part}" for each in ("d0", "d1") for part in ("cast", "mul", "scale")}
    assert rules <= {name for name, count in plan.recomputed.items() if count}
