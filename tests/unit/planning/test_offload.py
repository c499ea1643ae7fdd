"""Which tensors may be offloaded, who chooses, what is written, and what its check refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest

from helpers.graphs import TUNED, graph_of, open_text, tensor
from helpers.offloading import CUDA, DRAWN, deep
from memplan.errors import InfeasibleError
from memplan.ir.graph import Graph
from memplan.ops.cost import DEVICES, copy_seconds, node_costs
from memplan.planning.apply import apply_plan
from memplan.planning.offload import choices_for, offloadable
from memplan.planning.plan import Plan
from memplan.planning.planner import PlanRequest, Prepared, make_plan, prepare
from memplan.planning.rebuild_rules import extend
from memplan.planning.verify import Rejected, ensure
from memplan.proto.metadata import node_metadata
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline, simulate
from memplan.solver.problem import NONE
from memplan.strategies.builtin import parse_strategy

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


def test_stashes_with_a_buffer_of_their_own_may_be_offloaded() -> None:
    """Read as a view behind the boundary counts (a); t is made on the host, kept is an output."""
    forward = {"a", "v", "t", "b", "n", "kept"}
    assert offloaded_names(STEP.replace("Tan(", "Tanh("), forward) == "a b t"
    # There is no Tan for the device, so a is copied to the host anyway, and t is there.
    assert offloaded_names(STEP, forward) == "b"


def test_without_a_loss_everything_on_the_device_that_is_read() -> None:
    assert offloaded_names(STEP, None) == "b c d"


def test_what_is_kept_stays_on_the_device() -> None:
    text = STEP.replace("Tan(", "Tanh(")
    kept = frozenset({tensor(graph_of(text), "a").id})
    assert offloaded_names(text, {"a", "v", "t", "b", "n", "kept"}, kept) == "b t"


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
            offload=offload,
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
        prepared = self.model.prepared
        return ensure(prepared.proto, file, plan, prepared.types, CUDA)


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
    assert timeline.host is not None
    assert timeline.host.max() == 16384
    assert timeline.resident_bytes + timeline.dynamic_peak_bytes == plan.predicted_peak_bytes


def test_the_copy_stands_behind_what_makes_the_tensor_and_is_read_late(
    drawn: tuple[Bench, Plan],
) -> None:
    bench, plan = drawn
    order = [node.name for node in bench.written(plan).graph.node]
    assert order.index("r/offload") == order.index("draw") + 1
    assert order.index("r/reload") == order.index("last") - 1
    reads = {n.name: list(n.input) for n in bench.written(plan).graph.node}
    assert reads["last"][0] == "r/again"
    assert reads["first"][0] == "r"
    assert reads["r/reload"] == ["r/host"]


def test_a_read_back_costs_both_copies(drawn: tuple[Bench, Plan]) -> None:
    bench, plan = drawn
    prepared = bench.prepared(plan.budget_bytes)
    copy = prepared.extended.copies[tensor(bench.model.graph, "r").id]
    graph = prepared.extended.graph
    one = copy_seconds(graph, graph.nodes[copy.out], DEVICES["h200"])
    assert one == 16384 / DEVICES["h200"].host_bytes_per_second + DEVICES["h200"].kernel_seconds
    costs = prepared.encoded.arrays.cost
    assert costs[copy.back] == pytest.approx(2 * one)
    assert costs[copy.out] == 0
    base = float(costs[prepared.encoded.problem(1).order].sum())
    assert plan.extra_cost_fraction == pytest.approx(2 * one / base)
    assert plan.offloaded[0].seconds == pytest.approx(2 * one)


def test_greedy_and_published_strategies_choose_too() -> None:
    bench = Bench(deep())
    budget = int(0.7 * bench.whole)
    for name in ("greedy", "dtr"):
        plan = bench.plan(budget, name)
        assert bench.check(bench.written(plan), plan).peak_with_workspace_bytes <= budget


def test_choices_grow_until_all_are_read_back() -> None:
    model = open_text(deep(4))
    graph = model.graph
    stashes = offloadable(graph, CUDA, model.phases.forward, frozenset())
    extended = extend(graph, {}, "cuda", offload=stashes)
    maker = np.asarray([t.producer for t in extended.graph.tensors])
    costs = [1.0] * len(extended.graph.nodes)
    for copy in extended.copies.values():
        costs[copy.back] = 1.5
    found = choices_for(extended.graph, costs, maker, extended.copies)
    counts = [len(choice.behind) for choice in found]
    assert counts[0] == 0
    assert counts[-1] == len(stashes)
    assert counts == sorted(set(counts))
    for choice in found:
        read_back = {t for t, c in extended.copies.items() if choice.makers[t] == c.back}
        assert {extended.copies[t].out for t in read_back} == set(choice.behind)
        assert choice.idle == {c.out for c in extended.copies.values()} - set(choice.behind)


def test_what_nobody_can_recompute_is_read_back_in_every_choice() -> None:
    graph = graph_of(DRAWN)
    drawn = tensor(graph, "r").id
    extended = extend(graph, {}, "cuda", offload=frozenset({drawn, tensor(graph, "b").id}))
    maker = np.asarray([t.producer for t in extended.graph.tensors])
    maker[drawn] = NONE
    costs = [1.0] * len(extended.graph.nodes)
    for choice in choices_for(extended.graph, costs, maker, extended.copies):
        assert choice.makers[drawn] == extended.copies[drawn].back


def test_no_plan_has_a_copy_that_nobody_reads_back() -> None:
    bench = Bench(deep(size=256))
    for share in (0.7, 0.8, 0.9):
        plan = bench.plan(int(share * bench.whole), link=1e15)
        nodes = bench.written(plan).graph.node
        read = {name for n in nodes if n.op_type == "MemcpyFromHost" for name in n.input}
        made = {n.output[0] for n in nodes if n.op_type == "MemcpyToHost"}
        assert made == read
        assert 0 < len(made) == len(plan.offloaded) < len(plan.extended.copies)


def test_where_the_budget_holds_nothing_is_copied() -> None:
    bench = Bench(deep())
    plan = bench.plan(bench.whole)
    assert not plan.offloaded
    assert not plan.extended.copies


def test_a_fast_link_is_used_and_a_slow_one_is_not() -> None:
    bench = Bench(deep(size=256))
    slow, fast = (bench.plan(int(0.7 * bench.whole), link=link) for link in (1e9, 1e15))
    assert slow.clones
    assert not slow.offloaded
    assert fast.offloaded
    assert fast.extra_cost_fraction < slow.extra_cost_fraction


def test_the_lowest_peak_is_no_higher_than_without() -> None:
    bench = Bench(deep(4))
    peaks = [
        make_plan(
            prepare(replace(bench.request(0, offload=offload), lowest=True)),
            parse_strategy(SEARCH),
            5.0,
        ).predicted_peak_with_workspace_bytes
        for offload in (False, True)
    ]
    assert peaks[1] <= peaks[0]


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
    types = {**bench.model.prepared.types, "host": bench.model.prepared.types["r"]}
    with pytest.raises(Rejected, match=why):
        ensure(bench.model.prepared.proto, file, plan, types, CUDA)


@pytest.mark.rejects
def test_no_such_file_is_for_the_cpu(drawn: tuple[Bench, Plan]) -> None:
    bench, plan = drawn
    prepared = bench.model.prepared
    with pytest.raises(Rejected, match="CUDA sessions"):
        ensure(prepared.proto, bench.written(plan), plan, prepared.types, TUNED)


@pytest.mark.rejects
def test_device_bytes_are_simulated_anew(drawn: tuple[Bench, Plan]) -> None:
    bench, plan = drawn
    file = bench.written(plan)
    with pytest.raises(Rejected, match="breaks the budget"):
        bench.check(file, replace(plan, budget_bytes=bench.check(file, plan).peak_bytes - 1))


def test_roles_are_told(drawn: tuple[Bench, Plan]) -> None:
    bench, plan = drawn
    marks = {n.name: node_metadata(n) for n in bench.written(plan).graph.node}
    assert marks["r/offload"]["memplan.role"] == "offload"
    assert marks["r/reload"] == {
        "memplan.role": "reload",
        "memplan.of": "r",
        "memplan.saves_bytes": "16384",
    }


def test_names_in_use_are_left_alone() -> None:
    text = DRAWN.replace("[one] b", "[one] taken").replace("(b, b, b, b)", "(taken, taken, taken)")
    model = open_text(text)
    for node_proto in model.prepared.proto.graph.node:
        for slot, name in enumerate(node_proto.output):
            if name == "taken":
                node_proto.output[slot] = "r/host"
        for slot, name in enumerate(node_proto.input):
            if name == "taken":
                node_proto.input[slot] = "r/host"
    bench = Bench(model.prepared.proto)
    bench.forward = None
    plan = bench.plan(bench.whole - 16384)
    file = bench.written(plan)
    assert node(file, "r/offload").output[0] != "r/host"
    bench.check(file, plan)


def test_a_graph_that_is_extended_twice_has_other_names() -> None:
    graph: Graph = graph_of(DRAWN)
    stash = frozenset({tensor(graph, "r").id})
    first = extend(graph, {}, "cuda", offload=stash)
    second = extend(first.graph, {}, "cuda", offload=stash)
    assert [n.name for n in second.graph.nodes[-4:]] == [
        "r/offload_out",
        "r/offload_back",
        "r/offload2_out",
        "r/offload2_back",
    ]
