"""Gradients in float16 and bfloat16: long sums, and operators that have a kernel."""

import numpy as np
import onnx
import pytest

from helpers.gradients import runtime
from helpers.graphs import parse
from memplan import gradients
from memplan.ops.kernels import kernels_of, schema_version
from memplan.proto.nodes import operator_key

WINDOWS = """g (float16[1,1,5] x) => (float16[1,1,3] y) {
  y = MaxPool <kernel_shape = [3], strides = [STRIDE]> (x) }"""


def test_windows_apart_add_nothing_and_stay_narrow() -> None:
    text = WINDOWS.replace("STRIDE", "3").replace("[1,1,3]", "[1,1,1]")
    model = gradients(parse(text), "y", "x")
    scatter = next(node for node in model.graph.node if node.op_type == "ScatterElements")
    assert not any(item.name == "reduction" for item in scatter.attribute)
    assert onnx.TensorProto.FLOAT not in _casts(model)
    found = runtime(model, {"x": np.array([[[0, 1, 2, 1, 0]]], np.float16)})
    assert found["x_grad"].tolist() == [[[0, 0, 1, 0, 0]]]


@pytest.mark.parametrize("places", ["Gather(x, rows)", "GatherElements(x, numbers)"])
def test_zeros_that_are_added_to_in_float32_are_never_narrow(places: str) -> None:
    text = f"""g (float16[2,2] x) => (float16[2,2] y)
      <int64[2] rows = {{1, 1}}, int64[2,2] numbers = {{1, 1, 1, 1}}> {{ y = {places} }}"""
    model = gradients(parse(text), "y", "x")
    assert onnx.TensorProto.FLOAT not in _casts(model)
    found = runtime(model, {"x": np.ones((2, 2), np.float16)})
    assert found["x_grad"].tolist() == [[0, 0], [2, 2]]


def _casts(model: onnx.ModelProto) -> list[int]:
    return [node.attribute[0].i for node in model.graph.node if node.op_type == "Cast"]


def test_labels_that_are_scattered_in_float32_leave_no_one_hot_matrix() -> None:
    """The gradient of a softmax loss: numbers are scattered into the probabilities themselves."""
    text = """g (float16[4,3] x) => (float16 loss) <int64[4] t = {0, 2, 1, 1}> {
      loss = SoftmaxCrossEntropyLoss(x, t) }"""
    model = gradients(parse(text), "loss", "x")
    scatters = [node for node in model.graph.node if node.op_type == "ScatterElements"]
    assert len(scatters) == 1
    maker = next(node for node in model.graph.node if scatters[0].input[0] in node.output)
    assert maker.op_type == "Cast"  # of products, not an Expand of zeros
    x = np.arange(12).reshape(4, 3).astype(np.float16) / 4
    found = runtime(model, {"x": x})["x_grad"]
    shares = np.exp(x.astype(np.float64))
    shares /= shares.sum(1, keepdims=True)
    assert np.abs(found - (shares - np.eye(3)[[0, 2, 1, 1]]) / 4).max() < 2e-3


@pytest.mark.parametrize(
    "node",
    [
        "Relu(x)",
        "Abs(x)",
        "Max(x, z)",
        "ReduceMax <keepdims = 0> (x)",
        "Slice(x, one, two, zero)",
        "Gelu(x)",
        "Softmax(x)",
        "Sqrt(x)",
        "Div(x, z)",
        "Expand(x, shape)",
        "Gather(x, one)",
        "Tile(x, repeats)",
        "Where(c, x, z)",
        "Transpose(x)",
        "LayerNormalization(x, s)",
        "Pow(x, z)",
        "ReduceMean <keepdims = 0> (x)",
    ],
)
def test_what_a_gradient_adds_in_bfloat16_has_a_kernel_on_cuda(node: str) -> None:
    """Comparisons, Pad and others have none; they work in float32."""
    model = parse(
        f"""g (bfloat16[4,3] x, bfloat16[4,3] z, bfloat16[3] s, bool[4,3] c) => (y)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}},
         int64[2] repeats = {{2, 1}}, int64[3] shape = {{2, 4, 3}}> {{ y = {node} }}"""
    )
    model = onnx.shape_inference.infer_shapes(model)
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.BFLOAT16
    trained = gradients(model, "y", "x")
    known = onnx.shape_inference.infer_shapes(trained, strict_mode=True).graph
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*known.value_info, *known.input, *known.output)
    }
    types |= {tensor.name: tensor.data_type for tensor in known.initializer}
    opset = trained.opset_import[0].version
    added = [made for made in trained.graph.node if "y" not in made.output]
    assert added
    for made in added:
        version = schema_version("", made.op_type, opset)
        kinds = [types.get(name) for name in made.input]
        given = [types.get(name) for name in made.output]
        assert kernels_of("cuda").has(operator_key(made), version, kinds, given), made.op_type
    assert types["x_grad"] == onnx.TensorProto.BFLOAT16
