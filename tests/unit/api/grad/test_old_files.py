"""Files at odds with themselves, older than initializers of their own, newer than the runtime."""

from pathlib import Path

import onnx
import pytest

from memplan.api.grad.differentiate import grad, gradients
from memplan.api.grad.training_graph import GradOptions
from memplan.errors import ModelError
from memplan.proto.metadata import node_metadata
from memplan.proto.nodes import all_nodes

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


def test_files_newer_than_the_runtime_get_gradients_that_it_runs() -> None:
    """As the newest ``onnx.helper.make_model`` writes them."""
    model = onnx.parser.parse_model(FORWARD.replace("float[4,4] y", "float[3,4] y"))
    model.ir_version = onnx.IR_VERSION
    model.opset_import[0].version = onnx.defs.onnx_opset_version()
    step = grad(model, GradOptions(loss="mse", logits="y", optimizer="sgd"))
    assert step.check is not None
    assert step.check.verdict == "equal"


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


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 16, 17])
def test_old_opsets_are_raised_where_axes_are_attributes_and_scatters_do_not_add(
    opset: int,
) -> None:
    text = f"""
        <ir_version: 8, opset_import: ["" : {opset}]>
        g (float[2,3,9,9] x, float[4,3,3,3] w, bool b) => (float loss)
        {{
            [conv] c = Conv <kernel_shape = [3, 3]> (x, w)
            p = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (c)
            m = ReduceMean <axes = [2, 3], keepdims = 0> (p)
            q = If (b) <then_branch = t () => (float[2,4] s) {{ [square] s = Mul(m, m) }},
                else_branch = e () => (float[2,4] o) {{ o = Exp(m) }}>
            loss = ReduceSum <keepdims = 0> (q)
        }}
        """
    model = onnx.parser.parse_model(text)
    named = {node.name: node for node in all_nodes(model.graph.node)}
    for name in ("conv", "square"):
        named[name].metadata_props.add(key="memplan.module", value="stem")
    made = grad(model, GradOptions(loss="loss", wrt=("w",)))
    assert made.check.verdict == "equal"
    assert {item.version for item in made.model.opset_import} == {20}
    named = {node.name: node for node in all_nodes(made.model.graph.node)}
    for name in ("conv", "square"):
        assert node_metadata(named[name])["memplan.module"] == "stem"  # the converter forgets it


def test_an_operator_that_cannot_be_raised_is_refused_in_the_words_of_the_converter() -> None:
    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 13]>
        g (float[2,3,4] x, float[3] s, float[3] b, float[3] m, float[3] v)
            => (float[2,3,4] y, float[3] mean, float[3] var, float[3] saved, float[3] last)
        { y, mean, var, saved, last = BatchNormalization(x, s, b, m, v) }
        """
    )
    with pytest.raises(ModelError, match=r"from opset 13 to 20: .*outputs 4 and 5"):
        gradients(model, "y", "s")
