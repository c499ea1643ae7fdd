"""Recurrent layers of onnxruntime-training and their gradients: finite differences, and ONNX's own
layer on stock ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from helpers.gradients import runtime
from helpers.lowering import Array, Case, check_gradients, node, onnx_node, outputs_of, some
from memplan.autodiff.lowering.lowered_graph import LoweringRequest, lower_model
from memplan.errors import ModelError

pytestmark = pytest.mark.ort
STEPS, BATCH, WIDTH, HIDDEN = 4, 2, 3, 5


def given(gates: int, sides: int, *, states: int) -> dict[str, Array]:
    """Inputs of a layer by name."""
    found = {"x": some(STEPS, BATCH, WIDTH)}
    found["w"] = some(sides, gates * HIDDEN, WIDTH, seed=1, low=-0.8, high=0.8)
    found["r"] = some(sides, gates * HIDDEN, HIDDEN, seed=2, low=-0.8, high=0.8)
    found["b"] = some(sides, 2 * gates * HIDDEN, seed=3, low=-0.5, high=0.5)
    found["h"] = some(sides, BATCH, HIDDEN, seed=4)
    if states > 1:
        found["c"] = some(sides, BATCH, HIDDEN, seed=5)
    return found


def lstm(attributes: dict[str, Any], sides: int = 1) -> Case:
    feeds = given(4, sides, states=2)
    grads = "x_grad w_grad r_grad b_grad h_grad c_grad"
    feeds["y_grad"] = some(STEPS, sides, BATCH, HIDDEN, seed=7)
    nodes = [
        node(
            "LSTMTraining",
            "x w r b _ h c",
            "y last cell cells gates",
            hidden_size=HIDDEN,
            **attributes,
        ),
        node(
            "LSTMGrad",
            "x w r _ h c y cells gates y_grad _ _",
            grads,
            hidden_size=HIDDEN,
            **attributes,
        ),
    ]
    return Case(nodes, feeds, ["y", *grads.split()])


def gru(attributes: dict[str, Any], sides: int = 1) -> Case:
    feeds = given(3, sides, states=1)
    feeds["y_grad"] = some(STEPS, sides, BATCH, HIDDEN, seed=7)
    grads = "x_grad w_grad r_grad b_grad h_grad"
    nodes = [
        node("GRUTraining", "x w r b _ h", "y last gates", hidden_size=HIDDEN, **attributes),
        node("GRUGrad", "x w r b _ h y gates y_grad _", grads, hidden_size=HIDDEN, **attributes),
    ]
    return Case(nodes, feeds, ["y", *grads.split()])


CASES = {
    "lstm": lambda: lstm({}),
    "lstm, reverse": lambda: lstm({"direction": "reverse"}),
    "lstm, both ways": lambda: lstm({"direction": "bidirectional"}, 2),
    "gru": lambda: gru({}),
    "gru, reset behind the product": lambda: gru({"linear_before_reset": 1}),
    "gru, both ways": lambda: gru({"direction": "bidirectional"}, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    case = CASES[name]()
    values = check_gradients(case, run=runtime)
    forward = case.nodes[0]
    plain = onnx.NodeProto.FromString(forward.SerializeToString())
    plain.op_type, plain.domain = forward.op_type.removesuffix("Training"), ""
    plain.output[:] = ["y"]
    single = {n: a.astype(np.float32) for n, a in case.feeds.items() if n != "y_grad"}
    alone = Case([plain], single, ["y"], types={"y": onnx.TensorProto.FLOAT}).model()
    np.testing.assert_allclose(runtime(alone, single)["y"], values["y"], atol=1e-5)


def test_gradients_of_the_last_states() -> None:
    """And none of the sequence."""
    feeds = given(4, 1, states=2) | {"cell_grad": some(1, BATCH, HIDDEN, seed=8)}
    nodes = [
        node("LSTMTraining", "x w r b _ h c", "_ last cell cells gates", hidden_size=HIDDEN),
        node(
            "LSTMGrad",
            "x w r _ h c _ cells gates _ _ cell_grad",
            "x_grad w_grad _ b_grad",
            hidden_size=HIDDEN,
        ),
    ]
    case = Case(nodes, feeds, ["cell", "x_grad", "w_grad", "b_grad"])
    check_gradients(case, "cell", "cell_grad", runtime)


@pytest.mark.slow
def test_two_layers_and_one_state_for_both() -> None:
    """The second layer reads the first; hidden and cell state begin with the same zeros."""
    feeds = given(4, 1, states=1)
    feeds |= {"w2": some(1, 4 * HIDDEN, HIDDEN, seed=9, low=-0.8, high=0.8)}
    feeds["y_grad"] = some(STEPS, 1, BATCH, HIDDEN, seed=7)
    nodes = [
        node(
            "LSTMTraining", "x w r b _ h h", "y1 _ _ cells1 gates1", name="one", hidden_size=HIDDEN
        ),
        onnx_node("Squeeze", "y1 one", "y2", name="squeeze"),
        node(
            "LSTMTraining", "y2 w2 r b _ h h", "y _ _ cells2 gates2", name="two", hidden_size=HIDDEN
        ),
        node(
            "LSTMGrad",
            "y2 w2 r _ h h y cells2 gates2 y_grad _ _",
            "y2_grad w2_grad",
            name="two_Grad/LSTMGrad_0",
            hidden_size=HIDDEN,
        ),
        onnx_node("Unsqueeze", "y2_grad one", "y1_grad", name="unsqueeze"),
        node(
            "LSTMGrad",
            "x w r _ h h y1 cells1 gates1 y1_grad _ _",
            "x_grad w_grad",
            name="one_Grad/LSTMGrad_0",
            hidden_size=HIDDEN,
        ),
    ]
    constants = {"one": np.asarray([1])}
    check_gradients(
        Case(nodes, feeds, ["y", "x_grad", "w_grad", "w2_grad"], constants), run=runtime
    )


@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_a_layer_without_a_gradient_is_onnxs(op: str) -> None:
    gates, states = (4, 2) if op == "LSTM" else (3, 1)
    feeds = {n: a.astype(np.float32) for n, a in given(gates, 1, states=states).items()}
    forward = node(
        f"{op}Training",
        "x w r b _ h" + (" c" if op == "LSTM" else ""),
        "y last",
        hidden_size=HIDDEN,
    )
    kinds = {"y": onnx.TensorProto.FLOAT, "last": onnx.TensorProto.FLOAT}
    case = Case([forward], feeds, ["y", "last"], types=kinds)
    found = lower_model(case.model(), LoweringRequest()).model
    assert [item.op_type for item in found.graph.node] == [op]
    values = outputs_of(case)
    np.testing.assert_array_equal(values["last"][0], values["y"][-1, 0])


def test_what_grad_cannot_differentiate() -> None:
    with pytest.raises(ModelError, match="clips its gates"):
        lower_model(lstm({"clip": 2.0}).model(), LoweringRequest())
    lonely = [node("LSTMGrad", "x w r _ h c h c c x _ _", "x_grad", hidden_size=HIDDEN)]
    case = Case(lonely, given(4, 1, states=2), ["x_grad"])
    with pytest.raises(ModelError, match="LSTMGrad"):
        lower_model(case.model(), LoweringRequest())
