"""Plans for graphs whose bodies capture tensors: clones are read inside bodies too."""

from pathlib import Path

import numpy as np
import onnx
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from helpers.effort import tries
from helpers.plans import TUNED, checked, estimate, outputs_of, plan_and_apply
from helpers.random_graphs import models
from memplan.errors import InfeasibleError
from memplan.planning.apply import apply_plan
from memplan.planning.planner import PlanRequest, make_plan, prepare
from memplan.proto.nodes import captured_names
from memplan.runtime.inputs import synthesize
from memplan.shapes.prepare import prepare as prepare_model
from memplan.simulate.opened import OpenModel, opened
from memplan.simulate.timeline import Timeline, simulate
from memplan.solver.strategies.builtin import parse_strategy


def branch(node: onnx.NodeProto, name: str, negated: bool) -> onnx.GraphProto:
    """A body that computes ``node`` from captured tensors; its output is called ``name``."""
    inner = onnx.NodeProto()
    inner.CopyFrom(node)
    inner.name, inner.output[0] = f"{name}/body", f"{name}/positive" if negated else name
    nodes = [inner]
    if negated:
        nodes.append(helper.make_node("Neg", [inner.output[0]], [name], name=f"{name}/neg"))
    output = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
    return helper.make_graph(nodes, name, [], [output])


@st.composite
def models_with_branches(draw: st.DrawFn) -> onnx.ModelProto:
    """A random graph some of whose nodes stand in both branches of an If on the input ``c``."""
    model = draw(models(longest=20))
    types = onnx.shape_inference.infer_shapes(model, data_prop=True).graph.value_info
    floats = {v.name for v in types if v.type.tensor_type.elem_type == TensorProto.FLOAT}
    floats |= {t.name for t in model.graph.initializer if t.data_type == TensorProto.FLOAT}
    floats |= {value.name for value in model.graph.input}
    nodes = []
    for index, node in enumerate(model.graph.node):
        # In a body, shapes do not follow from whole numbers outside.
        if len(node.output) > 1 or not floats.issuperset((*node.input, *node.output)):
            nodes.append(node)
            continue
        if draw(st.integers(0, 3)):
            nodes.append(node)
            continue
        own = node.output[0]  # a body's output may have the name of the node's: they do not meet
        then_name = own if draw(st.booleans()) else f"{own}/then"
        bodies = branch(node, then_name, False), branch(node, f"{own}/else", True)
        nodes.append(
            helper.make_node(
                "If",
                ["c"],
                [own],
                name=node.name or f"if_{index}",
                then_branch=bodies[0],
                else_branch=bodies[1],
            )
        )
    inputs = [*model.graph.input, helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    graph = helper.make_graph(
        nodes, "random", inputs, model.graph.output, list(model.graph.initializer)
    )
    result = helper.make_model(graph, opset_imports=model.opset_import, ir_version=9)
    assume(any(node.op_type == "If" for node in nodes))
    return result


def check(model: OpenModel, rewritten: onnx.ModelProto, timeline: Timeline) -> None:
    """Equal outputs in both branches, and the larger one's memory as predicted."""
    peaks = []
    for taken in (True, False):
        feeds = synthesize(model.graph) | {"c": np.array(taken)}
        reference, _ = outputs_of(model.prepared.proto, feeds)
        outputs, result = outputs_of(rewritten, feeds)
        peaks.append(result.dynamic_bytes)
        assert [a.tobytes() for a in reference] == [b.tobytes() for b in outputs]
    assert max(peaks) == timeline.dynamic_peak_bytes


@settings(
    max_examples=tries(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(models_with_branches(), st.sampled_from((0.95, 0.7, 0.4, 0.1)))
def test_random_graphs(proto: onnx.ModelProto, share: float) -> None:
    model = opened(prepare_model(proto, Path("random.onnx"), {}))
    try:
        rewritten, plan, timeline = plan_and_apply(model, share)
    except InfeasibleError:
        assume(False)
    check(model, rewritten, timeline)
    assert timeline.peak_bytes <= plan.budget_bytes


CAPTURED = """
<ir_version: 10, opset_import: ["" : 20]>
g (float[256] x, bool c) => (float y, float loss)
{
    [t] t = Exp(x)
    [a] a = Neg(t) [b] b = Sqrt(a) [d] d = Sin(b) [e] e = Cos(d)
    [f] f = Add(d, e) [h] h = Mul(f, e)
    [loss] loss = ReduceSum<keepdims = 0>(h)
    [if] u = If<
        then_branch = then () => (float[256] r) { [then_neg] r = Neg(t) },
        else_branch = else () => (float[256] q)
        {
            [inner] q = If<
                then_branch = then2 () => (float[256] v) { [deep] v = Abs(t) },
                else_branch = else2 () => (float[256] w)
                    { [shadow] "t/recompute" = Sin(t) [last] w = Add("t/recompute", t) }
            >(c)
        }
    >(c)
    [y] y = ReduceSum<keepdims = 0>(u)
}"""


def test_a_clone_is_read_inside_bodies_and_no_body_hides_it() -> None:
    """``t`` is only read by bodies after its clone, one of which has the clone's usual name."""
    text = CAPTURED.replace('"t/recompute"', "t_recompute")
    proto = onnx.parser.parse_model(text)
    for node in proto.graph.node:
        if node.op_type == "If":
            _rename(node, "t_recompute", "t/recompute")
    model = opened(prepare_model(proto, Path("captured.onnx"), {}))
    peak = simulate(model.graph, TUNED).peak_with_workspace_bytes
    forced = next(t.id for t in model.graph.tensors if t.name == "t")
    request = PlanRequest(model.graph, TUNED, peak, estimate, force=frozenset({forced}))
    plan = make_plan(prepare(request), parse_strategy("greedy"), 10.0)
    rewritten = apply_plan(proto, plan, {})
    timeline = checked(model.prepared, rewritten, plan)
    (read,) = (captured_names(node) for node in rewritten.graph.node if node.op_type == "If")
    assert "t" not in read
    assert any(name.startswith("t/recompute_") for name in read)
    check(model, rewritten, timeline)


def _rename(node: onnx.NodeProto, old: str, new: str) -> None:
    """Names that the parser of ONNX text does not take."""
    for names in (node.input, node.output):
        names[:] = [new if name == old else name for name in names]
    for attribute in node.attribute:
        for inner in attribute.g.node:
            _rename(inner, old, new)
