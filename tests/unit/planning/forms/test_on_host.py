"""Which tensors may be offloaded, who chooses, what is written, and what its check refuses."""

from collections.abc import Callable
from dataclasses import replace

import onnx
import pytest

from helpers.graphs import TUNED, graph_of, open_text, tensor
from helpers.offloading import CUDA, DRAWN, deep
from helpers.plans import checked
from memplan.equivalence.prove import Side, prove, reference_side
from memplan.errors import InfeasibleError
from memplan.ops.cost import DEVICES, copy_seconds, node_costs
from memplan.planning.apply import apply_plan
from memplan.planning.forms.on_host import ON_HOST, offloadable
from memplan.planning.forms.packed_masks import PACKED
from memplan.planning.plan import Plan, Rejected
from memplan.planning.planner import PlanRequest, Prepared, make_plan, prepare
from memplan.proto.metadata import node_metadata
from memplan.shapes.fold import small_constants
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline, simulate
from memplan.solver.strategies.builtin import parse_strategy

SEARCH = "search{iterations=4,certify=0}"


def offloaded_names(text: str, forward: set[str] | None, kept: frozenset[int] = frozenset()) -> str:
    graph = graph_of(text)
    nodes = None if forward is None else frozenset(n.id for n in graph.nodes if n.name in forward)
    found = offloadable(graph, CUDA, nodes, kept)
    return " ".join(sorted(graph.tensors[t].name for t in found))


STEP = """
g (float[64] x, float[64] w) => (float[64] z, float[64] kept)
{
    [a] a = Mul(x, w) [v] v = Identity(a) [t] t = Tan(a) [b] b = Tanh(t) [n] n = Shape(b)
    [kept] kept = Sin(b) [c] c = Mul(v, b) [d] d = Mul(a, c) [e] e = Reshape(d, n)
    [z] z = Mul(e, t)
}"""


FORWARD = {"a", "v", "t", "b", "n", "kept"}
# There is no Tan for the device, so a is copied to the host anyway, and t is there.
DEVICE = STEP.replace("Tan(", "Tanh(")
LATER = "[u] u = Neg(b) [kept] kept = Sin(u)"


@pytest.mark.parametrize(
    ("text", "forward", "kept", "names"),
    [
        (DEVICE, FORWARD, "", "a b t"),
        (STEP, FORWARD, "", "b"),
        (STEP, None, "", "b c d"),  # no loss: everything on the device that is read
        (DEVICE, FORWARD, "a", "b t"),
        # What only the forward part reads is none.
        (DEVICE.replace("[kept] kept = Sin(b)", LATER), FORWARD | {"u"}, "", "a b t"),
    ],
)
def test_stashes_with_a_buffer_of_their_own_may_be_offloaded(
    text: str, forward: set[str] | None, kept: str, names: str
) -> None:
    """Read as a view behind the boundary counts (a); kept is an output."""
    stay = frozenset(tensor(graph_of(text), name).id for name in kept.split())
    assert offloaded_names(text, forward, stay) == names


class Bench:
    """A model, its request, and plans with and without offload."""

    def __init__(self, text: str | onnx.ModelProto = DRAWN) -> None:
        self.model: OpenModel = open_text(text)
        self.whole = simulate(self.model.graph, CUDA).peak_with_workspace_bytes
        self.forward = self.model.phases.forward if text is not DRAWN else None

    def request(
        self, budget: int, *, offload: bool = True, link: float | None = None
    ) -> PlanRequest:
        """``link``: bytes per second, copies without a launch; None: those of the profile."""
        device = DEVICES["h200"]
        if link is not None:
            device = replace(device, host_bytes_per_second=link, kernel_seconds=0.0)
        return PlanRequest(
            self.model.graph,
            CUDA,
            budget,
            lambda graph: node_costs(graph, device, "cuda"),
            forward=self.forward,
            forms=frozenset({ON_HOST} if offload else ()),
        )

    def prepared(self, budget: int) -> Prepared:
        return prepare(self.request(budget))

    def plan(
        self,
        budget: int,
        strategy: str = SEARCH,
        *,
        offload: bool = True,
        link: float | None = None,
    ) -> Plan:
        prepared = prepare(self.request(budget, offload=offload, link=link))
        return make_plan(prepared, parse_strategy(strategy), 5.0)

    def written(self, plan: Plan) -> onnx.ModelProto:
        return apply_plan(self.model.prepared.proto, plan, {})

    def check(self, file: onnx.ModelProto, plan: Plan) -> Timeline:
        return checked(self.model.prepared, file, plan, CUDA)


@pytest.fixture(scope="module")
def drawn() -> tuple[Bench, Plan]:
    """A budget that no recomputation keeps: the drawn tensor lies idle at the peak."""
    bench = Bench()
    budget = bench.whole - 64 * 64 * 4
    with pytest.raises(InfeasibleError):
        bench.plan(budget, offload=False)
    return bench, bench.plan(budget)


def test_a_drawn_stash_is_offloaded_where_nothing_else_fits(drawn: tuple[Bench, Plan]) -> None:
    bench, plan = drawn
    assert [(o.name, o.nbytes, o.reads_back) for o in plan.offloaded] == [("r", 16384, 1)]
    assert not plan.recomputed
    file = bench.written(plan)
    assert [n.name for n in file.graph.node if n.op_type.startswith("Memcpy")] == [
        "r/offload",
        "r/reload",
    ]
    timeline = bench.check(file, plan)
    assert timeline.peak_with_workspace_bytes <= plan.budget_bytes
    assert timeline.host.max() == 16384
    assert timeline.resident_bytes + timeline.dynamic_peak_bytes == plan.predicted_peak_bytes


def test_the_copy_stands_behind_what_makes_the_tensor_and_is_read_late(
    drawn: tuple[Bench, Plan],
) -> None:
    bench, plan = drawn
    nodes = bench.written(plan).graph.node
    order = [node.name for node in nodes]
    assert order.index("r/offload") == order.index("draw") + 1
    assert order.index("r/reload") == order.index("last") - 1
    reads = {n.name: n.input[0] for n in nodes}
    assert (reads["last"], reads["first"], reads["r/reload"]) == ("r/again", "r", "r/host")
    marks = {n.name: node_metadata(n) for n in nodes}
    assert marks["r/offload"]["memplan.role"] == "offload"
    told = {"memplan.role": "reload", "memplan.of": "r", "memplan.saves_bytes": "16384"}
    assert marks["r/reload"] == told


def test_a_read_back_costs_both_copies(drawn: tuple[Bench, Plan]) -> None:
    bench, plan = drawn
    prepared = bench.prepared(plan.budget_bytes)
    drawn = tensor(bench.model.graph, "r").id
    copy = next(form for form in prepared.extended.of_kind(ON_HOST) if form.tensor == drawn)
    graph = prepared.extended.graph
    one = copy_seconds(graph, graph.nodes[copy.encode[0]], DEVICES["h200"])
    assert one == 16384 / DEVICES["h200"].host_bytes_per_second + DEVICES["h200"].kernel_seconds
    costs = prepared.problem.arrays.cost
    assert costs[copy.decode] == pytest.approx(2 * one)
    assert costs[copy.encode[0]] == 0
    base = float(costs[prepared.problem.order].sum())
    assert plan.extra_cost_fraction == pytest.approx(2 * one / base)
    assert plan.offloaded[0].seconds == pytest.approx(2 * one)


def test_greedy_offloads_and_published_strategies_recompute_alone() -> None:
    bench = Bench(deep())
    budget = int(0.9 * bench.whole)
    for name in ("greedy", "segments"):
        plan = bench.plan(budget, name, link=1e15)
        assert bench.check(bench.written(plan), plan).peak_with_workspace_bytes <= budget
        assert bool(plan.offloaded) == (name == "greedy")


def test_no_plan_has_a_copy_that_nobody_reads_back() -> None:
    bench = Bench(deep(size=256))
    for share in (0.7, 0.8, 0.9):
        plan = bench.plan(int(share * bench.whole), link=1e15)
        nodes = bench.written(plan).graph.node
        read = {name for n in nodes if n.op_type == "MemcpyFromHost" for name in n.input}
        made = {n.output[0] for n in nodes if n.op_type == "MemcpyToHost"}
        assert made == read
        assert 0 < len(made) == len(plan.offloaded) < len(plan.extended.forms)


def test_where_the_budget_holds_nothing_is_copied() -> None:
    bench = Bench(deep())
    plan = bench.plan(bench.whole)
    assert not plan.offloaded
    assert not plan.extended.forms


@pytest.mark.slow
def test_the_bound_holds_for_recomputation_and_offload_at_any_price() -> None:
    """Whatever the link, the search with its certificate never finds a plan below the bound, which
    says something where copies are dear."""
    bench = Bench(deep(4, size=256))
    for link in (1e9, 5e10, 1e13):
        plan = bench.plan(int(0.8 * bench.whole), "search{iterations=12}", link=link)
        assert 0 <= plan.bound_fraction <= plan.extra_cost_fraction
        assert plan.bound_kind == "order-free"
        if link == 1e9:
            assert plan.bound_fraction > 0


Change = Callable[[onnx.ModelProto], None]


def node(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    return next(n for n in model.graph.node if n.name == name)


def reload_first(model: onnx.ModelProto) -> None:
    """The file is sorted, but what is read back was copied out by nobody."""
    node(model, "r/reload").input[0] = "x"


def compute_on_the_host(model: onnx.ModelProto) -> None:
    node(model, "first").input[1] = "r/host"


def copy_twice(model: onnx.ModelProto) -> None:
    node(model, "r/offload").input[0] = "host"
    again = onnx.NodeProto.FromString(node(model, "r/offload").SerializeToString())
    again.name, again.input[0], again.output[0] = "r/before", "r", "host"
    place = next(k for k, n in enumerate(model.graph.node) if n.name == "r/offload")
    model.graph.node.insert(place, again)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (reload_first, "r/reload reads a host copy that has not been made"),
        (compute_on_the_host, "first computes with a host copy"),
        (copy_twice, "r/offload makes a copy of what is on the host already"),
    ],
)
def test_files_that_are_refused(drawn: tuple[Bench, Plan], change: Change, why: str) -> None:
    bench, plan = drawn
    file = bench.written(plan)
    change(file)
    with pytest.raises(Rejected, match=why):
        bench.check(file, plan)


@pytest.mark.rejects
def test_no_such_file_is_for_the_cpu(drawn: tuple[Bench, Plan]) -> None:
    bench, plan = drawn
    with pytest.raises(Rejected, match="CUDA sessions"):
        checked(bench.model.prepared, bench.written(plan), plan, TUNED)


MIXED = """
step (float[64,64] x, float[64,64] w, float[64,64] v) => (float y)
<float ratio = {0.5}, bool on = {1}>
{
    [draw] r = RandomNormalLike<seed = 1.0>(x)
    [cheap] z = Tanh(x)
    [mix] c = Add(z, r)
    [drop] a, m = Dropout<seed: int = 2>(c, ratio, on)
    [one] p = MatMul(a, w)
    [two] q = MatMul(p, v)
    [wide] b = Concat<axis = 0>(q, q, q, q, q, q)
    [wider] e = Tanh(b)
    [sum] s = ReduceSum<keepdims = 0>(e)
    [back1] f = Mul(r, s)
    [back2] mf = Cast<to = 1>(m)
    [back3] g = Mul(f, mf)
    [back4] h = Mul(g, z)
    [back5] i = Mul(h, p)
    [back6] j = Mul(i, q)
    [last] y = ReduceSum<keepdims = 0>(j)
}"""
SECONDS = {"MatMul": 100.0, "MemcpyToHost": 10.0, "MemcpyFromHost": 10.0, "Tanh": 1.0}


def mixed_plan(model: OpenModel, budget: int, *forms: str) -> Plan:
    request = PlanRequest(
        model.graph,
        CUDA,
        budget,
        lambda graph: [SECONDS.get(node.op, 0.1) for node in graph.nodes],
        values=small_constants(model.prepared.bound.graph),
        forms=frozenset(forms),
    )
    return make_plan(prepare(request), parse_strategy("search{iterations=12}"), 5.0)


def test_one_plan_packs_offloads_and_recomputes_and_beats_each_alone() -> None:
    model = open_text(MIXED)
    # Two matrices and half of a mask are in the way.
    budget = simulate(model.graph, CUDA).peak_with_workspace_bytes - 2 * 64 * 64 * 4 - 2048
    with pytest.raises(InfeasibleError):
        mixed_plan(model, budget)
    packed = mixed_plan(model, budget, PACKED)
    copied = mixed_plan(model, budget, ON_HOST)
    both = mixed_plan(model, budget, PACKED, ON_HOST)
    assert both.extra_cost_fraction < min(packed.extra_cost_fraction, copied.extra_cost_fraction)
    assert [each.name for each in both.offloaded] == ["r"]
    assert "cheap" in both.recomputed
    assert any(name.startswith("m/pack") for name in both.recomputed)
    assert both.bound_kind == "order-free"
    assert 0 < both.bound_fraction <= both.extra_cost_fraction
    file = apply_plan(model.prepared.proto, both, {})
    timeline = checked(model.prepared, file, both, CUDA)
    assert timeline.peak_with_workspace_bytes <= budget
    reference = reference_side(model.prepared, file)
    found = prove(reference, Side(file, model.prepared.folder), "cuda")
    assert found.proved, found.reason
