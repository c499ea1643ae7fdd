"""Every condition on a rewritten file, read as a stranger would, and a bad file or plan for each:
none would be written."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from onnx import helper

import memplan
from helpers import networks
from helpers.chunking import layered
from helpers.graphs import TUNED, open_text
from helpers.plans import checked
from memplan.api.grad.training_graph import GradOptions
from memplan.api.rewrite import finish
from memplan.api.rewrite.check_file import require_as_promised, sound_timeline
from memplan.api.rewrite.rewriting import Rewrite, RewriteOptions, rewrite
from memplan.errors import EXIT_BUG
from memplan.planning.apply import apply_plan
from memplan.planning.plan import Plan, Rejected
from memplan.planning.planner import PlanRequest, make_plan, prepare
from memplan.proto.limits import MOST_NAME
from memplan.proto.metadata import node_metadata
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline, simulate
from memplan.solver.strategies.builtin import parse_strategy
from memplan.units import parse_budget, parse_size

pytestmark = pytest.mark.rejects

CHAIN = """
g (float[256] x, float[256] spare) => (float y, float last)
{
    [a] a = Exp(x) [b] b = Exp(a) [c] c = Sqrt(b) [d] d = Sin(c) [e] e = Cos(d)
    [f] f = Mul(e, d) [g] g = Mul(f, c) [h] h = Mul(g, b) [i] i = Mul(h, a)
    [y] y = ReduceSum<keepdims = 0>(i) [last] last = Exp(y)
}"""


class Bench:
    """A model, a plan that recomputes, and the file that it makes."""

    def __init__(self, text: str = CHAIN, share: float = 0.7) -> None:
        self.model: OpenModel = open_text(text)
        budget = int(share * simulate(self.model.graph, TUNED).peak_with_workspace_bytes)
        request = PlanRequest(self.model.graph, TUNED, budget, lambda g: [1.0] * len(g.nodes))
        self.plan: Plan = make_plan(prepare(request), parse_strategy("greedy"), 5.0)
        self.file = apply_plan(self.model.prepared.proto, self.plan, {})

    def check(self, plan: Plan | None = None) -> Timeline:
        """What its check says of the file."""
        return checked(self.model.prepared, self.file, plan or self.plan)


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    assert made.plan.clones
    return made


def test_a_file_at_its_budget_passes_and_one_byte_above_does_not(bench: Bench) -> None:
    peak = bench.check().peak_with_workspace_bytes
    bench.check(replace(bench.plan, budget_bytes=peak))
    with pytest.raises(Rejected, match=f"simulated peak {peak:,} B breaks the budget"):
        bench.check(replace(bench.plan, budget_bytes=peak - 1))


@pytest.mark.parametrize("wrong", [-4, 4])
def test_a_peak_that_was_not_predicted(bench: Bench, wrong: int) -> None:
    plan = replace(bench.plan, predicted_peak_bytes=bench.plan.predicted_peak_bytes + wrong)
    with pytest.raises(Rejected, match="planner and simulator disagree"):
        bench.check(plan)


def test_an_order_that_the_runtime_would_not_keep() -> None:
    """It runs a Shape as soon as its input is there, wherever it stands."""
    made = Bench(
        """
        g (float[256] x) => (float[256] y, int64[1] n)
        { [a] a = Exp(x) [s] n = Shape(a) [b] b = Sin(a) [c] y = Cos(b) }""",
        share=1.0,
    )
    made.check()
    nodes = {node.name: node for node in made.file.graph.node}
    late = [onnx.NodeProto.FromString(nodes[k].SerializeToString()) for k in ("a", "b", "c", "s")]
    del made.file.graph.node[:]
    made.file.graph.node.extend(late)
    with pytest.raises(Rejected, match="plan order"):
        made.check()


Change = Callable[[onnx.ModelProto], object]


def named(value: onnx.ValueInfoProto) -> str:
    return value.name


def spare(kind: int, size: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info("spare", kind, [size])


FLOAT, DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
INTERFACES: dict[str, Change] = {
    "an input less": lambda m: m.graph.input.pop(1),
    "an output less": lambda m: m.graph.output.pop(1),
    "an output more": lambda m: m.graph.output.append(
        helper.make_tensor_value_info("i", FLOAT, [256])
    ),
    "inputs in another order": lambda m: m.graph.input.sort(key=named),
    "outputs in another order": lambda m: m.graph.output.sort(key=named),
    "a wider input": lambda m: m.graph.input[1].CopyFrom(spare(FLOAT, 512)),
    "an input of another type": lambda m: m.graph.input[1].CopyFrom(spare(DOUBLE, 256)),
}


@pytest.mark.parametrize("change", INTERFACES.values(), ids=INTERFACES)
def test_another_interface(bench: Bench, change: Change) -> None:
    change(bench.file)
    with pytest.raises(Rejected, match=r"the graph (in|out)puts changed"):
        bench.check()


def node(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    return next(n for n in model.graph.node if n.name == name)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: node(m, "c").attribute.append(helper.make_attribute("colour", 3)),
        lambda m: node(m, "c").input.append("x"),
    ],
    ids=["unknown attribute", "too many inputs"],
)
def test_what_the_checker_refuses(bench: Bench, change: Change) -> None:
    change(bench.file)
    with pytest.raises(Rejected, match="the ONNX checker refuses the model"):
        bench.check()


def test_a_recomputation_that_nobody_reads(bench: Bench) -> None:
    """A clone more, behind all others, so that order and peak stay."""
    clone = next(n for n in bench.file.graph.node if "memplan.of" in node_metadata(n))
    idle = onnx.NodeProto.FromString(clone.SerializeToString())
    idle.name, idle.output[0] = "idle", "nobody"
    bench.file.graph.node.append(idle)
    with pytest.raises(Rejected, match="nothing reads the recomputed node idle"):
        bench.check()


def test_an_original_that_nobody_reads_is_the_users(bench: Bench) -> None:
    """Only what memplan added must serve."""
    text = CHAIN.replace("[y] y =", "[idle] idle = Sin(a) [y] y =")
    Bench(text, share=1.0).check()


def test_a_body_that_captures_counts_as_a_reader() -> None:
    """An optional output that only a branch reads stays."""
    made = Bench(
        """
        g (float[16,16] x, float[16] w, bool flag) => (float[16,16] y, float[16,1] z)
        { [ln] n, mean, dev = LayerNormalization(x, w) [y] y = Exp(n)
          [branch] z = If (flag) <
            then_branch = one () => (float[16,1] u) { [u] u = Sin(mean) },
            else_branch = two () => (float[16,1] v) { [v] v = Cos(dev) }
          > }""",
        share=1.0,
    )
    assert list(node(made.file, "ln").output) == ["n", "mean", "dev"]
    made.check()


ROWS = 512


def fused(depth: int = 12) -> onnx.ModelProto:
    """Layers whose products are the runtime's own operator, of which shape inference knows nothing,
    one behind the other, for any number of rows. The file states the sizes of its tensors."""
    model = layered(depth=depth, rows=ROWS)
    for value in (*model.graph.input, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value == ROWS:
                dim.dim_param = "rows"
    model = onnx.shape_inference.infer_shapes(model)
    model.opset_import.add(domain="com.microsoft", version=1)
    for node in model.graph.node:
        if node.op_type == "MatMul":
            node.op_type, node.domain = "FusedMatMul", "com.microsoft"
    return model


def rewritten(chunk: str = "layers", budget: str = "60%") -> Rewrite:
    options = RewriteOptions(
        parse_size(budget), chunk=chunk, optimize="none", strategy="greedy", passes="none"
    )
    return rewrite(fused(), options, dims={"rows": ROWS})


def test_chunks_of_a_dynamic_batch_state_their_sizes() -> None:
    result = rewritten()
    assert result.chunked
    stated = {value.name for value in result.model.graph.value_info}
    made = {name for node in result.model.graph.node for name in node.output}
    assert made <= stated | {value.name for value in result.model.graph.output}
    again = memplan.analyze(result.model)
    assert not again.inexact
    timeline = result.timeline
    assert again.timeline.peak_with_workspace_bytes == timeline.peak_with_workspace_bytes


def test_state_whose_outputs_state_no_shape_stays_apart_where_loops_store_less() -> None:
    """What the check of the file refuses is refused of every version of the graph."""
    options = GradOptions(loss="cross-entropy", logits="logits", optimizer="sgd")
    step = memplan.grad(networks.lstm(), options, check=False).model
    for value in step.graph.output:
        value.type.tensor_type.ClearField("shape")
    result = rewrite(step, RewriteOptions(parse_budget("min"), optimize="none", effort=1))
    assert result.pairs
    assert result.planned.state is not None
    assert not result.planned.state.in_place


def test_chunks_that_nobody_else_can_read_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is made once more without chunks, and that is told."""

    def unreadable(model: onnx.ModelProto, *more: Any) -> Timeline:
        if any("/chunk" in node.name for node in model.graph.node):
            raise Rejected("a chunk cannot be read")
        return sound_timeline(model, *more)

    monkeypatch.setattr(finish, "sound_timeline", unreadable)
    result = rewritten()
    assert not result.chunked
    assert any("rejected: a chunk cannot be read." in note for note in result.assumptions)
    assert not memplan.analyze(result.model, {"rows": ROWS}).inexact


@pytest.mark.parametrize("wrong", [(1, 0), (-1, 0), (0, 1)])
def test_a_file_that_says_something_else_is_our_bug(wrong: tuple[int, int]) -> None:
    def timeline(peak: int, resident: int) -> Any:
        return SimpleNamespace(peak_with_workspace_bytes=peak, resident_bytes=resident)

    promised = timeline(3000, 1000)
    require_as_promised(promised, timeline(3000, 1000))
    with pytest.raises(Rejected, match=r"takes [0-9,]+ B when it is read again, not 3,000 B") as it:
        require_as_promised(promised, timeline(3000 + wrong[0], 1000 + wrong[1]))
    assert it.value.exit_code == EXIT_BUG


def test_a_tensor_without_a_size_is_named() -> None:
    """Only the file says how many elements a run picks."""
    made = Bench(
        """g (float[8] x, bool[8] on) => (float z) <float[4] y>
        { [pick] y = Compress(x, on) [sum] z = ReduceSum<keepdims: int = 0>(y) }""",
        share=1.0,
    )
    made.check()
    del made.file.graph.value_info[:]
    with pytest.raises(Rejected, match="does not tell the size of"):
        made.check()


def test_what_memplan_would_not_read_is_not_written(bench: Bench) -> None:
    """ONNX's checker lets a name pass that no file may have."""
    node(bench.file, "c").name = "c" * (MOST_NAME + 1)
    with pytest.raises(Rejected, match="the new file cannot be read again: "):
        bench.check()
