"""Files at odds with themselves, and files older than initializers of their own."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from memplan.api.grad.differentiate import grad, gradients
from memplan.api.grad.training_graph import GradOptions
from memplan.errors import ModelError

FORWARD = """
    <ir_version: 10, opset_import: ["" : 18]>
    g (float[3,4] x) => (float[4,4] y) <float[4,4] w = {}>
    {{
        m = MatMul(x, w)
        y = Tanh(m)
    }}
""".format("{" + ", ".join("1" for _ in range(16)) + "}")


def test_a_stated_shape_that_the_inputs_contradict_is_the_files_fault() -> None:
    model = onnx.parser.parse_model(FORWARD)
    with pytest.raises(ModelError, match=r"states float\[4, 4\] for tensor 'y'"):
        grad(model, GradOptions(loss="mse", logits="y", wrt=("*",)))
    with pytest.raises(ModelError, match=r"states float\[4, 4\] for tensor 'y'"):
        gradients(model, "y", "w")


def test_files_older_than_initializers_of_their_own_get_gradients(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(FORWARD.replace("float[4,4] y", "float[3,4] y"))
    weight = onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, (4, 4))
    model.graph.input.append(weight)
    model.ir_version = 3
    onnx.checker.check_model(model)
    step = grad(model, GradOptions(loss="mse", logits="y", wrt=("w",))).model
    onnx.checker.check_model(step)
    assert step.ir_version == 4


def test_a_product_whose_left_side_has_lost_its_last_size_is_differentiated() -> None:
    """The weight tells it. Its shape is decided at run time, by numbers that are fed."""
    model = onnx.parser.parse_model(
        """
        <ir_version: 10, opset_import: ["" : 18]>
        g (float[6,4] x, int64[3] sizes, float[4,5] w) => (float[a,b,5] y)
        {
            r = Reshape(x, sizes)
            y = MatMul(r, w)
        }
        """
    )
    step = gradients(model, "y", "w")
    assert "w_grad" in {value.name for value in step.graph.output}
