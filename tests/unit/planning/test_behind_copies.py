"""Fences that keep the planned order where a GPU's session copies from the CPU."""

from pathlib import Path

import onnx
import pytest

from helpers.graphs import parse
from helpers.models import SAMPLES
from memplan.api.rewrite.rewriting import RewriteOptions, rewrite
from memplan.equivalence.prove import Side, prove, reference_side
from memplan.ir.graph import Graph
from memplan.planning.behind_copies import in_planned_order
from memplan.proto.edit import copied
from memplan.shapes.dims import symbolic_dims
from memplan.shapes.prepare import prepare
from memplan.simulate.devices import place
from memplan.simulate.opened import opened
from memplan.simulate.run_order import placed_order
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import simulate
from memplan.units import LOWEST, parse_size

TUNED = session_kind("tuned", "webgpu")
LABELS = """g (float[4,4] x, int64[4] n) => (float[4,4] y, float[4,4] late) {
  a = Relu (x)
  m = Mul (n, n)
  i = Cast <to = 1> (m)
  b = Mul (a, i)
  c = Relu (b)
  e = Exp (x)
  y = Add (c, e)
  late = Mul (y, e) }"""
MIDDLE = """g (float[4,4] x) => (float[4,4] y) {
  a = Relu (x)
  s = LogSoftmax (a)
  b = Relu (s)
  e = Exp (x)
  y = Add (b, e) }"""
LOOSE = """g (float[4,4] x, int64[4] n) => (float[4] y, float[4,4] z) {
  z = Relu (x)
  i = Cast <to = 1> (n)
  b = Relu (i)
  c = Constant <value_float = 0.0> ()
  d = Constant <value_float = 4.0> ()
  u = Constant <value_float = 1.0> ()
  r = Range (c, d, u)
  e = Exp (r)
  y = Add (b, e) }"""
PLACED = "g (float[4,4] x) => (float[4,4] y) { a = Relu (x) b = Exp (x) y = Add (a, b) }"


OPEN = """g (float[N,M] x, int64[N,M] n) => (float[N,M] y, float[N,M] late) {
  s = Shape (x)
  a = Relu (x)
  m = Mul (n, n)
  i = Cast <to = 1> (m)
  b = Mul (a, i)
  c = Relu (b)
  e = Exp (x)
  y = Add (c, e)
  r = Reshape (y, s)
  late = Mul (r, e) }"""
SIZES = {"N": 4, "M": 4}


def graph_of(model: onnx.ModelProto) -> Graph:
    dims = SIZES if symbolic_dims(model) else {}
    return opened(prepare(copied(model), Path("m.onnx"), dims)).graph


def order_of(model: onnx.ModelProto) -> list[str]:
    """Nodes of the model that run on the device, in the order of a session."""
    graph = graph_of(model)
    held, devices = place(graph, "webgpu")
    own = set(range(len(graph.nodes))) - devices.host_nodes
    order = placed_order(held, TUNED, devices)
    return [graph.tensors[graph.nodes[k].outputs[0]].name for k in order if k in own]


@pytest.mark.parametrize(
    ("text", "early"),
    [
        (LABELS, ["a", "e", "b"]),
        (MIDDLE, ["a", "e", "b"]),
        (OPEN, ["s", "a", "e"]),
        (OPEN.replace("Exp (x)", "Exp (a)"), ["s", "a", "e"]),
    ],
)
def test_what_overtakes_waits(text: str, early: list[str]) -> None:
    model = parse(text)
    for node in model.graph.node:
        node.name = node.output[0]
    assert order_of(model)[:3] == early
    before = copied(model)
    exact = not symbolic_dims(model)
    fenced = in_planned_order(model, TUNED, graph_of, exact=exact)
    added = [node for node in fenced.graph.node if node.name.startswith("memplan/")]
    kinds = ["Shape", "Concat", "Reshape"] if exact else ["Shape", "Shape", "Concat", "Reshape"]
    assert [node.op_type for node in added] == kinds
    names = [name for name in order_of(fenced) if not name.startswith("memplan/")]
    assert names == sorted(names, key=[node.name for node in before.graph.node].index)
    original = prepare(copied(before), Path("m.onnx"), SIZES if symbolic_dims(before) else {})
    found = prove(reference_side(original, fenced), Side(fenced, Path()), "webgpu")
    assert found.proved, found.reason


@pytest.mark.parametrize("exact", [True, False])
def test_what_reads_a_node_that_cannot_wait_does(exact: bool) -> None:
    """Range reads on the host alone."""
    model = parse(LOOSE)
    assert order_of(model)[:3] == ["z", "r", "e"]
    found = order_of(in_planned_order(model, TUNED, graph_of, exact=exact))
    assert [name for name in found if not name.startswith("memplan/")][:3] == ["z", "r", "b"]


@pytest.mark.parametrize(("text", "opset"), [(PLACED, 18), (LABELS, 14)])
def test_nothing_is_added_where_nothing_waits_or_shapes_cannot_be_cut(
    text: str, opset: int
) -> None:
    model = parse(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    before = model.SerializeToString(deterministic=True)
    fenced = in_planned_order(model, TUNED, graph_of, exact=True)
    assert fenced.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("budget", ["50%", "min"])
def test_a_step_whose_sizes_are_open_has_a_plan(budget: str) -> None:
    """What is written keeps its symbol: the proof holds for every size, and knows no ranks. At 50%
    the first plan is over the budget by a mask that is copied to the device."""
    size = LOWEST if budget == "min" else parse_size(budget)
    options = RewriteOptions(size, provider="webgpu", effort=1)
    found = rewrite(SAMPLES / "gpt_dynamic.onnx", options, dims={"N": 2}, dry_run=True)
    assert symbolic_dims(found.model)
    assert any(node.name.startswith("memplan/") for node in found.model.graph.node)
    graph = opened(prepare(copied(found.model), Path("m.onnx"), {"N": 2})).graph
    held, devices = place(graph, "webgpu")
    peak = simulate(held, TUNED, devices).peak_with_workspace_bytes
    assert devices.copies
    if budget == "min":
        assert any(f"{peak:,} B" in note for note in found.assumptions)
    else:
        assert peak <= found.budget_bytes


def test_fences_of_several_waits_on_one_tensor_share_their_shapes() -> None:
    options = RewriteOptions(
        parse_size("70%"), provider="webgpu", optimize="none", strategy="search{iterations=6}"
    )
    result = rewrite(SAMPLES / "mlp_adamw.onnx", options, dry_run=True)
    added = [n for n in result.model.graph.node if n.name.startswith("memplan/")]
    shapes = [node.input[0] for node in added if node.op_type == "Shape"]
    assert len(shapes) == len(set(shapes)) > 0
