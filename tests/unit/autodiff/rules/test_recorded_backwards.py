"""A recorded backward once more, with the real gradients in it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from helpers.gradients import reference
from memplan.autodiff.backward import Request, build_gradients
from memplan.errors import ModelError
from memplan.proto.surrogates import (
    DOMAIN,
    GRADIENT_OF,
    WITH_GRADIENT,
    without_surrogates,
)


def recorded(**stated: int) -> onnx.ModelProto:
    """loss = sum(3 · y), where y is 5 · x with the gradient min(gradient, 2) · x."""

    def info(name: str, shape: list[int]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    stated = {"number": 0, "ys": 1, "xs": 1, **stated}
    limit = helper.make_tensor("limit", TensorProto.FLOAT, [], [2.0])
    five = helper.make_tensor("five", TensorProto.FLOAT, [], [5.0])
    three = helper.make_tensor("three", TensorProto.FLOAT, [], [3.0])
    nodes = [
        helper.make_node("Mul", ["x", "five"], ["value"], "five_times"),
        helper.make_node(
            GRADIENT_OF, ["value"], ["g"], "g", domain=DOMAIN, number=0, slot=0, label="f"
        ),
        helper.make_node("Min", ["g", "limit"], ["least"], "least"),
        helper.make_node("Mul", ["least", "x"], ["dx"], "dx"),
        helper.make_node(
            WITH_GRADIENT, ["value", "x", "dx"], ["y"], "y", domain=DOMAIN, label="f", **stated
        ),
        helper.make_node("Mul", ["y", "three"], ["scaled"], "scaled"),
        helper.make_node("ReduceSum", ["scaled"], ["loss"], "loss", keepdims=0),
    ]
    graph = helper.make_graph(
        nodes, "g", [info("x", [3])], [info("loss", [])], [limit, five, three]
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def test_the_real_gradient_stands_where_another_stood() -> None:
    found = build_gradients(recorded(), Request(("loss",), ("x",)))
    without_surrogates(found)
    assert {node.domain for node in found.graph.node} == {""}
    x = np.asarray([1.0, -2.0, 4.0], np.float32)
    outputs = reference(found, {"x": x})
    np.testing.assert_allclose(outputs["loss"], 15 * x.sum())
    np.testing.assert_allclose(outputs["x_grad"], 2 * x)


def test_what_keeps_a_gradient_is_refused_by_name() -> None:
    model = recorded()
    model.graph.output.append(helper.make_tensor_value_info("least", TensorProto.FLOAT, [3]))
    found = build_gradients(model, Request(("loss",), ("x",)))
    with pytest.raises(ModelError, match="the backward of the f changes something beside"):
        without_surrogates(found)


@pytest.mark.parametrize("stated", [{"ys": 0}, {"ys": 2}, {"xs": 5}, {"xs": -1}])
def test_a_node_that_states_something_else_is_refused(stated: dict[str, int]) -> None:
    with pytest.raises(ModelError, match="other inputs than it states"):
        build_gradients(recorded(**stated), Request(("loss",), ("x",)))
