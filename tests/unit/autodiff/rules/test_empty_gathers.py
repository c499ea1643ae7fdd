"""Gradients of gathers that read nothing, or tensors without elements."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from helpers.gradients import runtime
from memplan.autodiff.backward import Request, build_gradients

pytestmark = pytest.mark.ort


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("op", "shape", "places"),
    [
        ("Gather", (5, 3), (2, 0)),
        ("Gather", (5, 3), (0, 2)),
        ("Gather", (5, 3), (0,)),
        ("Gather", (5, 0), (2, 2)),
        ("GatherND", (5, 3), (2, 0, 1)),
        ("GatherND", (5, 3), (2, 0, 2)),
    ],
)
def test_no_elements(
    op: str, shape: tuple[int, ...], places: tuple[int, ...], dynamic: bool
) -> None:
    """Nothing is added; with open sizes of the indices it is known at run time only."""
    last = places[-1] if op == "GatherND" else None
    open_sizes: list[int | str] = [f"N{k}" for k in range(len(places))]
    if last is not None:
        open_sizes[-1] = last
    found = runtime(
        _trained(op, shape, open_sizes if dynamic else places),
        {"x": np.ones(shape, np.float32), "i": np.zeros(places, np.int64)},
    )["x_grad"]
    np.testing.assert_array_equal(found, np.zeros(shape, np.float32))


@pytest.mark.parametrize("places", [(2, 0), (0, 2)])
def test_no_elements_along_another_axis(places: tuple[int, ...]) -> None:
    model = _trained("Gather", (5, 3), places, axis=1)
    feeds = {"x": np.ones((5, 3), np.float32), "i": np.zeros(places, np.int64)}
    np.testing.assert_array_equal(runtime(model, feeds)["x_grad"], np.zeros((5, 3), np.float32))


def test_indices_of_no_dimension() -> None:
    """GatherND then reads the whole tensor, as often as there are indices."""
    feeds = {"x": np.ones((5, 3), np.float32), "i": np.zeros((2, 0), np.int64)}
    found = runtime(_trained("GatherND", (5, 3), (2, 0)), feeds)["x_grad"]
    np.testing.assert_array_equal(found, np.full((5, 3), 2, np.float32))


def _trained(
    op: str, shape: tuple[int, ...], places: tuple[int, ...] | list[int | str], **attributes: int
) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "i"], ["y"], name="node", **attributes)],
        "test",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("i", TensorProto.INT64, places),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return build_gradients(onnx.shape_inference.infer_shapes(model), Request(("y",), ("x",)))
