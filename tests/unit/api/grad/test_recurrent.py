"""``memplan grad`` on recurrent layers: the report, the option, what it refuses."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import memplan
from helpers.gradients import draw, reference, runtime, single
from helpers.graphs import parse
from helpers.recurrent_layers import layer
from memplan.api.grad.differentiate import grad
from memplan.api.grad.training_graph import GradOptions
from memplan.autodiff.backward import Request, build_gradients
from memplan.errors import ModelError


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"clip": 1.0}, r"LSTM 'rnn' clips its gates \(attribute clip\)"),
        ({"input_forget": 1}, r"LSTM 'rnn' couples its gates \(attribute input_forget\)"),
        ({"layout": 1}, r"LSTM 'rnn' has the batch first \(attribute layout\)"),
        ({"activations": ["Sigmoid", "Cosh", "Tanh"]}, "has an activation 'Cosh' that is not"),
        ({"activations": ["Sigmoid", "Affine", "Tanh"]}, "has an activation 'Affine' that is not"),
    ],
)
def test_refused(attributes: dict[str, object], message: str) -> None:
    model = layer("LSTM", **attributes)
    with pytest.raises(ModelError, match=message):
        build_gradients(model, Request(("loss",), ("W",)))


def test_peepholes_are_refused() -> None:
    arrays = [draw(s, k) for k, s in enumerate([(3, 2, 5), (1, 8, 5), (1, 8, 2)])]
    more = (None, None, None, None, draw((1, 6), 7))
    model, given = single("LSTM", *arrays, *more, outputs=1, hidden_size=2)
    with pytest.raises(ModelError, match=r"has peepholes \(input P\), which has no gradient here"):
        build_gradients(model, Request(("y0",), tuple(given)))


def test_weights_inside_a_body(tmp_path: Path) -> None:
    """They move to the main graph, where they are trained like others."""
    model = parse("""g (float[2,9] h0, float[3,2,9] x) => (float loss) {
        last = Scan <num_scan_inputs = 1, body = step (float[2,9] h, float[2,9] u) => (float[2,9] o)
            { m = MatMul (h, weight)  n = Add (m, u)  o = Tanh (n) }> (h0, x)
        loss = ReduceSum <keepdims = 0> (last) }""")
    weight = numpy_helper.from_array(draw((9, 9)).astype(np.float32) / 9, "weight")
    model.graph.node[0].attribute[1].g.initializer.append(weight)
    onnx.save(model, tmp_path / "f.onnx")
    options = GradOptions(loss="loss")
    assert grad(tmp_path / "f.onnx", options).wrt == ("weight",)
    trained = memplan.gradients(model, "loss", "weight")
    assert trained.graph.initializer[0].name == "weight"
    feeds = {"h0": draw((2, 9)).astype(np.float32), "x": draw((3, 2, 9), 1).astype(np.float32)}
    found = runtime(trained, feeds)
    np.testing.assert_allclose(found["loss"], reference(model, feeds)["loss"], rtol=1e-5)
    assert found["weight_grad"].shape == (9, 9)
