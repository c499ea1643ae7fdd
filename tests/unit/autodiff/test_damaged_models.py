"""``grad`` of damaged models is an error of the model; of valid ones with odd parts it works."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import memplan
from memplan.api.grad.differentiate import grad
from memplan.api.grad.training_graph import GradOptions
from memplan.errors import ModelError

HEADER = '<ir_version: 10, opset_import: ["" : 18]>\n'


def written(text: str, folder: Path, edit: Callable[[onnx.ModelProto], None] | None = None) -> Path:
    model = onnx.parser.parse_model(HEADER + text)
    if edit is not None:
        edit(model)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def differentiated(path: Path, logits: str = "y") -> onnx.ModelProto:
    return grad(path, GradOptions("mse", logits=logits, wrt=("*",))).model


SIMPLE = "g (float[3,4] x) => (float[3] y) { y = ReduceSum <keepdims: int = 0> (x, axes) }"


def with_axes(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "axes"))


def test_an_lstm_whose_first_output_is_omitted(tmp_path: Path) -> None:
    text = """g (float[5,2,3] x, float[1,16,3] w, float[1,16,4] r) => (float[1,2,4] y)
    { unused, y = LSTM <hidden_size: int = 4> (x, w, r) }"""

    def omit(model: onnx.ModelProto) -> None:
        model.graph.node[0].output[0] = ""

    made = differentiated(written(text, tmp_path, omit))
    assert {"x_grad", "w_grad", "r_grad"} <= {value.name for value in made.graph.output}


def test_the_mean_of_nothing(tmp_path: Path) -> None:
    text = "g (float[0,4] x) => (float[4] y) { y = ReduceMean <keepdims: int = 0> (x, axes) }"

    def axes(model: onnx.ModelProto) -> None:
        model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "axes"))

    made = differentiated(written(text, tmp_path, axes))
    assert "x_grad" in {value.name for value in made.graph.output}


def test_a_phase_that_is_none_counts_as_forward(tmp_path: Path) -> None:
    def stray(model: onnx.ModelProto) -> None:
        with_axes(model)
        model.graph.node[0].metadata_props.add(key="memplan.phase", value="dreaming")

    result = grad(written(SIMPLE, tmp_path, stray), GradOptions("mse", logits="y", wrt=("*",)))
    assert sum(result.nodes.values()) == len(result.model.graph.node)


def keepdims(model: onnx.ModelProto) -> onnx.AttributeProto:
    return model.graph.node[0].attribute[0]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda m: m.graph.node[0].attribute.append(keepdims(m)),
            "Attribute .keepdims. appeared multiple times",
        ),
        (
            lambda m: setattr(keepdims(m), "ref_attr_name", "of_a_function"),
            "refers to an attribute of a function",
        ),
        (lambda m: setattr(keepdims(m), "i", -5), "attribute 'keepdims' is neither 0 nor 1"),
        (
            lambda m: setattr(m.graph.node[0], "op_type", "Nonsense"),
            "checker refuses the model: No Op registered for Nonsense",
        ),
        (
            lambda m: setattr(keepdims(m), "name", "to"),
            "checker refuses the model: Unrecognized attribute: to",
        ),
        (lambda m: setattr(m, "ir_version", 0), "checker refuses the model: .*ir_version"),
    ],
)
def test_faults_of_the_file_are_told_as_such(
    edit: Callable[[onnx.ModelProto], None], message: str, tmp_path: Path
) -> None:
    model = onnx.parser.parse_model(HEADER + SIMPLE)
    with_axes(model)
    edit(model)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=message):
        differentiated(tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=message):
        memplan.gradients(model, "y", "x")


def test_shapes_that_do_not_fit_are_told_as_such(tmp_path: Path) -> None:
    text = "g (float[3,4] x, float[5] s) => (float[3,4] y) { y = PRelu (x, s) }"
    with pytest.raises(ModelError, match=r"PRelu_0.*its inputs do not fit its operator"):
        differentiated(written(text, tmp_path))


def test_a_loop_of_three_hundred_million_steps_is_not_unrolled(tmp_path: Path) -> None:
    text = """g (float[4] x) => (float[4] y) <int64 trips = {300000000}, bool going = {1}>
    { y = Loop <body = b (int64 i, bool c, float[4] v) => (bool d, float[4] w)
      { d = Identity (c) w = Mul (v, v) }> (trips, going, x) }"""
    with pytest.raises(ModelError, match=r"300,000,000 elements of a constant for the gradient"):
        differentiated(written(text, tmp_path))


def test_a_resize_to_gigabytes_of_matrix_is_refused(tmp_path: Path) -> None:
    text = """g (float[1,1,30000] x) => (float[1,1,45000] y) <float[3] s = {1.0, 1.0, 1.5}>
    { y = Resize <mode: string = "linear"> (x, , s) }"""
    with pytest.raises(ModelError, match=r"1,350,000,000 elements of a constant"):
        differentiated(written(text, tmp_path))


def test_a_resize_that_keeps_the_aspect_ratio() -> None:
    """With sizes that a run decides its gradient cannot be built, and says so."""
    policy = 'keep_aspect_ratio_policy = "not_smaller", axes = [2, 3]'
    body = f'{{{{ y = Resize <mode = "nearest", {policy}> (x, , , sizes) }}}}'
    text = "g (float[1,1,4,6] x{given}) => (float[1,1,M,N] y) {known} " + body
    known = text.format(given="", known="<int64[2] sizes = {2, 2}>")
    found = memplan.gradients(onnx.parser.parse_model(HEADER + known), "y", "x")
    shape = found.graph.output[-1].type.tensor_type.shape
    assert [dim.dim_value for dim in shape.dim] == [1, 1, 4, 6]
    late = text.format(given=", int64[2] sizes", known="").replace("M,N", "2,3")
    with pytest.raises(ModelError, match="constant sizes, as it keeps the aspect ratio"):
        memplan.gradients(onnx.parser.parse_model(HEADER + late), "y", "x")
