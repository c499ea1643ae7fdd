"""A recorded backward once more, with the real gradients in it."""

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
    numbers = {"number": 0, "ys": 1, "xs": 1, **stated}
    told = ", ".join(f"{name} = {number}" for name, number in numbers.items())
    return onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20, "{DOMAIN}" : 1]>
        g (float[3] x) => (float loss)
        <float limit = {{2}}, float five = {{5}}, float three = {{3}}> {{
          [five_times] value = Mul(x, five)
          [g] g = {DOMAIN}.{GRADIENT_OF} <number = 0, slot = 0, label = "f"> (value)
          [least] least = Min(g, limit)
          [dx] dx = Mul(least, x)
          [y] y = {DOMAIN}.{WITH_GRADIENT} <label = "f", {told}> (value, x, dx)
          [scaled] scaled = Mul(y, three)
          [loss] loss = ReduceSum <keepdims = 0> (scaled) }}"""
    )


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
