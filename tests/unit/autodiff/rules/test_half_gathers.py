"""Gradients in float16 that stock ONNX Runtime runs: its scatters do not add in that type."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from helpers.gradients import Array, runtime
from memplan.autodiff.backward import Request, build_gradients

pytestmark = pytest.mark.ort
PLACES = {
    "Gather": np.asarray([[0, 2, 2], [3, 0, 2]]),
    "GatherElements": np.asarray([[0, 2, 2], [3, 0, 2]]),
    "GatherND": np.asarray([[0], [2], [2]]),
}


@pytest.mark.parametrize("op", PLACES)
def test_gathers(op: str) -> None:
    """The same row twice: its gradients are added."""
    places, half = PLACES[op], TensorProto.FLOAT16
    node = helper.make_node(op, ["x", "i"], ["y"], name="node")
    graph = helper.make_graph(
        [node],
        "test",
        [
            helper.make_tensor_value_info("x", half, [4, 3]),
            helper.make_tensor_value_info("i", TensorProto.INT64, places.shape),
        ],
        [helper.make_tensor_value_info("y", half, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    trained = build_gradients(onnx.shape_inference.infer_shapes(model), Request(("y",), ("x",)))
    x = np.arange(12, dtype=np.float16).reshape(4, 3)
    found = runtime(trained, {"x": x, "i": places})["x_grad"]
    wanted: Array = np.zeros((4, 3))
    if op == "GatherElements":
        for row in range(2):
            np.add.at(wanted, (places[row], np.arange(3)), 1)
    else:
        np.add.at(wanted, places.reshape(-1), 1)
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, wanted)
