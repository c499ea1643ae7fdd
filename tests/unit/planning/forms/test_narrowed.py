"""Which whole numbers may be kept narrower, what stands for them, and plans that use it."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.graphs import TUNED, open_text, parse, tensor
from memplan.equivalence.prove import Side, prove, reference_side
from memplan.ir.graph import Graph
from memplan.passes.change import facts_of
from memplan.passes.manager import PassManager
from memplan.passes.release import Release
from memplan.planning.apply import apply_plan
from memplan.planning.forms.extend_graph import NO_KINDS, extend, kinds_for
from memplan.planning.forms.narrowed import NARROWED, Ranges, window_of
from memplan.planning.planner import PlanRequest, make_plan, prepare
from memplan.planning.verify import ensure
from memplan.shapes.fold import small_constants
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import simulate
from memplan.solver.strategies.builtin import parse_strategy

POOL = """g (float[2, 4, 600, 600] x) => (float[2, 4, 600, 600] y, int64[2, 4, 300, 300] z)
<int64[2] first = {0, 0}, int64[2] second = {1, 1}, int64[2] axes = {2, 3}, int64 one = {1}>
{ [pool] v, i = MaxPool <kernel_shape: ints = [2, 2], strides: ints = [2, 2]>(x)
  [origin] same, own = MaxPool <kernel_shape: ints = [1, 1]>(x)
  [cut] planes = Slice(own, first, second, axes)
  [within] t = Sub(i, planes) [a] a = MatMul(x, x) [b] b = MatMul(a, x) [c] c = MatMul(b, x)
  [e] e = Add(b, c) [f] f = Mul(e, b) [g] y = Mul(f, a) [use] z = Add(t, one) }"""


LONG = """g (float[2, 4, 120, 120] x) => (int64[2, 4, 60, 60] y) <int64[1] axes = {0}>
{ [pool] v, i = MaxPool <kernel_shape: ints = [2, 2], strides: ints = [2, 2]>(x)
  [a] a = MatMul(v, v) [w] w = Concat <axis: int = 0>(a, a, a, a, a, a, a, a)
  [m] m = ReduceMax(w, axes) [f] f = Add(a, m) [k] k = Cast <to: int = 7>(f) [y] y = Add(i, k) }"""
NARROW = frozenset({NARROWED})
UINT8, INT16, INT32 = 2, 5, 6


def kept(model: OpenModel, provider: str = "cpu") -> dict[str, int]:
    """The type in which each tensor may be kept."""
    values = small_constants(model.prepared.bound.graph)
    found = extend(model.graph, values, provider, NARROW)
    graph = found.graph
    last = {form.tensor: graph.nodes[form.encode[-1]] for form in found.forms}
    return {graph.tensors[t].name: graph.tensors[node.outputs[0]].dtype for t, node in last.items()}


def request_for(text: str, budget: int, kinds: frozenset[str] = NARROW) -> PlanRequest:
    model = open_text(text)
    values = small_constants(model.prepared.bound.graph)
    return PlanRequest(model.graph, TUNED, budget, seconds, values, forms=kinds)


def seconds(graph: Graph) -> list[float]:
    return [{"MatMul": 100.0, "MaxPool": 50.0}.get(node.op, 0.1) for node in graph.nodes]


@pytest.mark.parametrize("released", [False, True])
def test_an_index_within_its_window_takes_less(released: bool) -> None:
    model = open_text(POOL)
    if released:
        model = PassManager([Release()]).run(model, simulate(model.graph, TUNED))[-1].model
    assert kept(model)["t"] == kept(model)["i"] == INT16


@pytest.mark.slow
def test_where_a_pool_is_dear_its_index_is_narrowed() -> None:
    """Verified, proved, cheaper than any plan without; with a budget that holds, nothing is."""
    model, costs = open_text(LONG), []
    budget = simulate(model.graph, TUNED).peak_with_workspace_bytes - 4 * 2 * 4 * 60 * 60
    for kinds in (NO_KINDS, NARROW):
        request = prepare(request_for(LONG, budget, kinds))
        plan = make_plan(request, parse_strategy("search{iterations=6}"), 10.0)
        prepared = model.prepared
        rewritten = apply_plan(prepared.proto, plan, prepared.dims)
        ensure(prepared.proto, rewritten, plan, prepared.types, TUNED)
        found = prove(reference_side(prepared, rewritten), Side(rewritten, prepared.folder))
        assert found.proved, found.reason
        assert plan.bound_fraction <= plan.extra_cost_fraction + 1e-9
        costs.append(plan.extra_cost_fraction)
        assert plan.forms == ({NARROWED: 1} if kinds else {})
    assert costs[1] < costs[0]
    whole = make_plan(prepare(request_for(LONG, 1 << 40)), parse_strategy("search"), 10.0)
    assert not whole.clones


def test_shapes_that_hold_are_needed() -> None:
    assert kinds_for(open_text(POOL).prepared, NARROW) == NARROW
    named = POOL.replace("[2, 4, 600, 600] x)", "[N, 4, 600, 600] x)")
    assert not kinds_for(open_text(named, dims={"N": 2}).prepared, NARROW)


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("600, 600", "600, 600", INT16),
        ("Sub(i, planes)", "Abs(i)", None),  # nothing is known of that
        ("Sub(i, planes)", "Add(i, one)", INT32),  # no window, only a range
        ("Sub(i, planes)", "Sub(i, own2)", None),
        ("2, 2]>(x)", "2, 2], storage_order: int = 1>(x)", INT32),
        ("2, 2]>(x)", '2, 2], auto_pad: string = "SAME_UPPER">(x)', INT32),
        ("ints = [1, 1]>(x)", "ints = [1, 1]>(x2)", INT32),
    ],
)
def test_other_indices(old: str, new: str, kind: int | None) -> None:
    assert old in POOL
    text = POOL.replace(old, new).replace("{ [pool]", "{ [x2] x2 = Neg(x) [pool]")
    text = text.replace("[within]", "[own2] own2 = Neg(planes) [within]")
    assert kept(open_text(text)).get("t") == kind


def test_of_few_columns_a_byte_is_enough() -> None:
    text = POOL.replace("600, 600", "7200, 50").replace("300, 300", "3600, 25")
    text = text.replace("MatMul(x, x)", "MatMul(x, turned)").replace(
        "[a]", "[turn] turned = Transpose <perm: ints = [0, 1, 3, 2]>(x) [a]"
    )
    text = text.replace(
        "[b] b = MatMul(a, x) [c] c = MatMul(b, x)", "[b] b = MatMul(a, x) [c] c = Exp(b)"
    )
    assert kept(open_text(text.replace("Mul(f, a)", "MatMul(a, f)")))["t"] == UINT8


def test_what_is_small_is_left_alone() -> None:
    assert set(kept(open_text(POOL.replace("600", "14").replace("300", "7")))) == {"own"}


def test_on_cuda_an_index_may_lie_outside_its_window() -> None:
    assert kept(open_text(POOL), "cuda")["t"] == INT32


def test_a_window_is_what_numpy_says() -> None:
    text = """g (float[2, 3, 7, 9] x) => (float[] v, int64[] i)
     { [pool] v, i = MaxPool <kernel_shape: ints = [3, 2], strides: ints = [2, 3],
       pads: ints = [1, 1, 2, 0], dilations: ints = [1, 2]>(x) }"""
    facts = facts_of(open_text(text))
    found = window_of(facts, tensor(facts.graph, "i"))
    assert found is not None
    total = sum((part for parts in found.parts for part in parts), np.zeros((), np.int64))
    rows, columns = tensor(facts.graph, "i").shape[2:]
    for n, c, h, w in np.ndindex(2, 3, rows, columns):
        assert total[n, c, h, w] == (n * 3 + c) * 63 + (2 * h - 1) * 9 + 3 * w - 1
    assert found.reach == 2 * 9 + 2


RANGES = {
    "Cast <to: int = 7>(k)": (0, 1),
    "ArgMax <axis: int = 1>(x)": (0, 5),
    "Add(s, s)": (0, 10),
    "Sub(s, c)": (-7, 8),
    "Mul(s, c)": (-15, 35),
    "Max(s, c)": (0, 7),
    "Where(k, s, c)": (-3, 7),
    "Concat <axis: int = 0>(s, c)": (-3, 7),
    "Transpose(s)": (0, 5),
    "Mul(huge, s)": (-(2**63), 2**63 - 1),  # it may wrap
    "Abs(c)": (-(2**63), 2**63 - 1),
}


@pytest.mark.parametrize("node", RANGES)
def test_ranges(node: str) -> None:
    text = f"""g (float[4, 6] x, bool[4, 1] k) => (int64[] t)
      <int64[4, 1] c = {{-3, 0, 2, 7}}, int64[4, 1] huge = {{1, 2, 3, 4611686018427387904}}>
      {{ [s] s = ArgMin <axis: int = 1>(x) [t] t = {node} }}"""
    facts = facts_of(open_text(text))
    assert Ranges(facts).of(tensor(facts.graph, "t").id) == RANGES[node]


def test_what_a_body_reads_stays_as_it_is() -> None:
    """Cast back before the body, it would be wide from there on."""
    text = POOL.replace("(float[2, 4, 600, 600] x)", "(float[2, 4, 600, 600] x, bool up)")
    inside = """If(up) <then_branch = yes () => (int64[2, 4, 300, 300] p) { p = Add(t, one) },
        else_branch = no () => (int64[2, 4, 300, 300] q) { q = Sub(t, one) }>"""
    assert "t" not in kept(open_text(text.replace("Add(t, one)", inside)))


def test_what_the_author_wants_kept_stays_as_it_is() -> None:
    model = parse(POOL)
    within = next(node for node in model.graph.node if node.name == "within")
    within.metadata_props.add(key="memplan.checkpoint", value="true")
    assert "t" not in kept(open_text(model))
