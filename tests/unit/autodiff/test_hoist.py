"""Backward nodes that run in the forward part, as they make less than they would keep alive."""

import numpy as np
import onnx

import memplan
from helpers.gradients import check, draw
from helpers.graphs import parse
from memplan.proto.metadata import node_metadata


def phase(model: onnx.ModelProto, op: str) -> list[str]:
    """Phases of the nodes of an operator."""
    nodes = [node for node in model.graph.node if node.op_type == op]
    return [node_metadata(node).get("memplan.phase", "") for node in nodes]


def trained(body: str, wrt: str = "x", sizes: str = "[3,4]") -> onnx.ModelProto:
    text = f"g (double{sizes} x, double[4,4] w) => (double z) {{ {body} z = ReduceSum(y) }}"
    model = parse(text.replace("ReduceSum(y)", "ReduceSum<keepdims = 0>(y)"))
    if not sizes.count("N"):
        check((model, {"x": draw((3, 4)), "w": draw((4, 4), 1)}), xs=wrt.split())
    return memplan.gradients(model, "z", wrt.split())


def test_a_mask_instead_of_what_it_is_made_of() -> None:
    model = trained("a = Sin(x) b = Relu(a) y = MatMul(b, w)")
    assert phase(model, "Greater") == ["forward"]
    order = [node.op_type for node in model.graph.node]
    assert order.index("Greater") == order.index("Relu") + 1
    assert {v.name: v for v in model.graph.value_info}["Relu_1/grad/Greater"]


def test_of_symbolic_sizes() -> None:
    model = trained("a = Sin(x) b = Relu(a) y = MatMul(b, w)", sizes="[N,4]")
    assert phase(model, "Greater") == ["forward"]


def test_nothing_moves_where_the_numbers_are_kept_anyway() -> None:
    """The weight's gradient reads the output of Relu, directly or as a view."""
    assert phase(trained("a = Sin(x) b = Relu(a) y = MatMul(b, w)", "x w"), "Greater") == [
        "backward"
    ]
    text = """g (double[3,4] x, double[2,2] w) => (double z)
        <int64[2] flat = {6, 2}>
        { a = Sin(x) b = Relu(a) c = Reshape(b, flat) y = MatMul(c, w)
          z = ReduceSum<keepdims = 0>(y) }"""
    assert phase(memplan.gradients(parse(text), "z", ["x", "w"]), "Greater") == ["backward"]


def test_nothing_moves_for_a_graph_output() -> None:
    text = """g (double[3,4] x) => (double z, double[3,4] b)
        { a = Sin(x) b = Relu(a) c = Sin(b) z = ReduceSum<keepdims = 0>(c) }"""
    assert phase(memplan.gradients(parse(text), "z", "x"), "Greater") == ["backward"]


def test_several_readers_move_together_and_what_reads_them_follows() -> None:
    """HardSigmoid: two masks of an output, then their conjunction."""
    model = trained("a = Sin(x) b = HardSigmoid(a) y = MatMul(b, w)")
    for op in ("Greater", "Less", "And"):
        assert phase(model, op) == ["forward"], op
    kept = {
        name
        for node in model.graph.node
        if node_metadata(node).get("memplan.phase") == "backward"
        for name in node.input
    }
    made = {v.name: v.type.tensor_type.elem_type for v in model.graph.value_info}
    masks = [name for name in kept if made.get(name) == onnx.TensorProto.BOOL]
    assert len(masks) == 1


def test_nothing_moves_that_makes_as_much() -> None:
    model = trained("a = Sin(x) b = Softplus(a) y = MatMul(b, w)")
    assert phase(model, "Sigmoid") == ["backward"]
    assert np.prod([dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]) == 12
