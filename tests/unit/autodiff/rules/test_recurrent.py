"""Gradients of LSTM, GRU and RNN: the expansion computes the same, and finite differences."""

from typing import Any

import numpy as np
import onnx
import pytest

from helpers.gradients import Array, check, draw, runtime, single

STEPS, BATCH, WIDTH, HIDDEN = 3, 2, 3, 2
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(
    op: str,
    directions: int = 1,
    dtype: Any = np.float64,
    *,
    lengths: Array | None = None,
    initial: bool = False,
    outputs: int = 2,
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one node with all float inputs as graph inputs."""
    gates, d = GATES[op], directions
    if d == 2:
        attributes["direction"] = "bidirectional"
    state = (d, BATCH, HIDDEN)
    parts: list[Array | None] = [
        draw((STEPS, BATCH, WIDTH), 1),
        draw((d, gates * HIDDEN, WIDTH), 2) / 2,
        draw((d, gates * HIDDEN, HIDDEN), 3) / 2,
        draw((d, 2 * gates * HIDDEN), 4) / 2,
        lengths,
        draw(state, 5) / 2 if initial else None,
    ]
    if op == "LSTM":
        parts.append(draw(state, 6) / 2 if initial else None)
    parts = [p.astype(dtype) if p is not None and p.dtype.kind == "f" else p for p in parts]
    while parts[-1] is None:
        parts.pop()
    kinds = [int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))] * outputs
    return single(
        op, *parts, outputs=outputs, out_dtypes=kinds, opset=20, hidden_size=HIDDEN, **attributes
    )


CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "lstm": ("LSTM", 1, {"outputs": 3}),
    "lstm reverse": ("LSTM", 1, {"direction": "reverse", "initial": True}),
    "lstm both": ("LSTM", 2, {"initial": True, "outputs": 3}),
    "lstm lengths": ("LSTM", 2, {"lengths": np.array([2, 3], np.int32), "outputs": 3}),
    "lstm full length": ("LSTM", 1, {"lengths": np.array([3, 3], np.int32)}),
    "gru": ("GRU", 1, {}),
    "gru reset behind": ("GRU", 2, {"linear_before_reset": 1, "initial": True}),
    "rnn": ("RNN", 1, {}),
    "rnn both": ("RNN", 2, {"initial": True, "lengths": np.array([1, 3], np.int32)}),
    "lstm hard sigmoid": (
        "LSTM",
        1,
        {
            "activations": ["HardSigmoid", "Tanh", "HardSigmoid"],
            "activation_alpha": [0.3],
            "activation_beta": [0.4],
        },
    ),
    "rnn relu": ("RNN", 1, {"activations": ["Relu"]}),
}


@pytest.mark.parametrize("name", [name for name in CASES if name != "lstm hard sigmoid"])
def test_finite_differences(name: str) -> None:
    """In float64, of the expansion (nothing evaluates the operators in float64 otherwise);
    HardSigmoid has no float64 kernel."""
    op, directions, options = CASES[name]
    model, feeds = recurrent(op, directions, **options)
    written_out = expanded(model, list(feeds))
    check((written_out, feeds), run=runtime)


def expanded(model: onnx.ModelProto, xs: list[str]) -> onnx.ModelProto:
    """The forward part as grad writes it."""
    from memplan.autodiff.forward.annotate import flat_copy
    from memplan.autodiff.forward.expand import expand_all

    flat = flat_copy(model)
    return expand_all(flat, [value.name for value in flat.graph.output], xs).model


@pytest.mark.parametrize("name", CASES)
def test_expansion_computes_the_same(name: str) -> None:
    """As ONNX Runtime's kernel, in float32."""
    op, directions, options = CASES[name]
    model, feeds = recurrent(op, directions, np.float32, **options)
    wanted = runtime(model, feeds)
    found = runtime(expanded(model, list(feeds)), feeds)
    assert wanted.keys() == found.keys()
    for key, array in wanted.items():
        np.testing.assert_allclose(found[key], array, rtol=2e-5, atol=2e-6)
