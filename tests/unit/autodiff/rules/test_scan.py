"""Gradients of Scan: finite differences in float64."""

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from helpers.gradients import check, draw, reference, runtime
from helpers.loops import pairs_of, recompute_in_scans, reopened
from helpers.scans import MIXED, ODD, RNN, feeds_for, model_of_text
from memplan.autodiff.backward import Request, build_gradients
from memplan.errors import ModelError, UsageError


@pytest.mark.parametrize("ys", [["last", "all"], ["last"], ["all"]])
def test_rnn(ys: list[str]) -> None:
    model = onnx.parser.parse_model(RNN)
    check((model, feeds_for(model)), ys=ys, run=runtime)


@pytest.mark.parametrize("opset", [13, 16, 19, 23])
def test_axes_directions_and_states(opset: int) -> None:
    model = model_of_text(MIXED, opset)
    check((model, feeds_for(model)), run=runtime)


@pytest.mark.parametrize("y", ["ea", "eb", "p", "q"])
@pytest.mark.parametrize("x", ["x", "y", "a", "k"])
def test_outputs_and_inputs_without_gradient(x: str, y: str) -> None:
    """What the one does not depend on is an error; nothing else is built for it."""
    model = model_of_text(MIXED)
    if (x, y) in {("y", "ea"), ("k", "ea"), ("x", "eb"), ("y", "q"), ("k", "q")}:
        with pytest.raises(ModelError, match="does not depend on"):
            build_gradients(model, Request((y,), (x,)))
        return
    trained = check((model, feeds_for(model)), xs=[x], ys=[y], run=runtime)
    backward = trained.graph.node[-1] if trained.graph.node[-1].op_type == "Scan" else None
    if x in ("x", "y"):
        assert f"{x}_grad" in backward.output


def test_outputs_that_are_inputs() -> None:
    """ONNX Runtime 1.31 computes wrong values for such a Scan; the training graph has none, not in
    its forward part either. The reference evaluator runs the forward graph: it knows no reversed
    Scan, but computes this one as ONNX says."""
    model = model_of_text(ODD)
    feeds = feeds_for(model)

    def run(given: onnx.ModelProto, values: Any) -> Any:
        return reference(given, values) if len(given.graph.node) == 1 else runtime(given, values)

    trained = check((model, feeds), run=run)
    seeds = {f"seed_{value.name}": np.zeros(2) for value in model.graph.output[:3]}
    seeds |= {f"seed_{value.name}": np.zeros((3, 2)) for value in model.graph.output[3:]}
    found = runtime(trained, feeds | seeds)
    for name, array in reference(model, feeds).items():
        np.testing.assert_allclose(found[name], array, rtol=1e-12)


NESTED = """
    g (double[2,3,2] x, double[2] h0, double[2] w) => (double[2] last, double[2,3,2] all)
    {
        [outer] last, all = Scan<num_scan_inputs = 1, body = rows
            (double[2] h, double[3,2] row) => (double[2] h2, double[3,2] seq)
            {
                [inner] h1, seq = Scan<num_scan_inputs = 1, body = cells
                    (double[2] g, double[2] cell) => (double[2] g1, double[2] o)
                    { [m] m = Mul(g, w) [a] s = Add(m, cell) [t] g1 = Tanh(s) [o] o = Mul(g1, h) }>
                    (h, row)
                [h2] h2 = Sin(h1)
            }>(h0, x)
    }"""


def test_a_scan_in_a_scan() -> None:
    model = model_of_text(NESTED)
    check((model, feeds_for(model)), run=runtime)


def test_symbolic_sizes() -> None:
    """Steps and batch known at run time only."""
    text = RNN.replace("double[3,2] x", "double[T,N,2] x").replace("double[4] h0", "double[N,4] h0")
    text = text.replace("double[3,4] all", "double[T,N,4] all").replace("[4] last", "[N,4] last")
    text = text.replace("double[4] h,", "double[N,4] h,").replace("double[2] xt", "double[N,2] xt")
    text = text.replace("double[4] next", "double[N,4] next").replace("[4] out", "[N,4] out")
    model = onnx.parser.parse_model(text)
    sizes = {"T": 3, "N": 2}
    feeds = {
        value.name: draw(
            [sizes.get(d.dim_param, d.dim_value) for d in value.type.tensor_type.shape.dim], k
        )
        for k, value in enumerate(model.graph.input)
    }
    check((model, feeds), run=runtime)


def test_random_masks_are_stored() -> None:
    """A Dropout inside never runs again: its mask is stored at every step, and nobody can have it
    recomputed."""
    text = """
        g (float[4,8] x, float[8] h0) => (float[4,8] all)
            <float half = {0.5}, bool on = {1}>
        {
            [loop] last, all = Scan<num_scan_inputs = 1, body = step
                (float[8] h, float[8] xt) => (float[8] next, float[8] out)
                { [d] d = Dropout(xt, half, on) [a] s = Add(d, h) [t] next = Tanh(s)
                  [o] out = Mul(next, s) }>(h0, x)
        }"""
    model = model_of_text(text)
    feeds = {"x": np.ones((4, 8), np.float32), "h0": np.zeros(8, np.float32)}
    trained = build_gradients(model, Request(("all",), ("x",)))
    for found in (trained, recompute_in_scans(trained, "all")):
        (pair,) = pairs_of(reopened(found))
        assert "d/1" in [item.tensor for item in pair.stored]
        gradient = runtime(found, feeds)["x_grad"]
        assert 0 < (gradient == 0).sum() < gradient.size
    with pytest.raises(UsageError, match="Dropout 'd' cannot be recomputed"):
        recompute_in_scans(trained, "d+d/1")


def test_operators_without_a_rule_in_a_body_are_named() -> None:
    text = RNN.replace("[act] next = Tanh(z)", "[n] y = com.x.Foo(z) [act] next = com.x.Bar(y)")
    model = onnx.parser.parse_model(text.replace('["" : 20]', '["" : 20, "com.x" : 1]'))
    with pytest.raises(ModelError, match=r"com.x:Bar \(act\); com.x:Foo \(n\)"):
        build_gradients(model, Request(("last",), ("w",)))
