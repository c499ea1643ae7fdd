"""Gradients of If, and of Loop with a fixed number of iterations."""

import numpy as np
import onnx
import onnx.parser
import pytest

from helpers.gradients import Array, check, draw, runtime
from memplan.autodiff.backward import Request, build_gradients
from memplan.errors import ModelError

HEAD = '<ir_version: 10, opset_import: ["" : 20]>\n'
IF = (
    HEAD
    + """g (double[3] x, double[3] w, double[3] v, bool flag) => (double[3] y, double[3] z)
    {
        [choose] y, z = If(flag) <
            then_branch = yes () => (double[3] a, double[3] t)
            { [e] e = Exp(x) [m] a = Mul(e, w) [s] t = Sin(a) },
            else_branch = no () => (double[3] b, double[3] u)
            { [two] two = Constant<value = double {2.0}>() [d] d = Mul(x, two) [q] q = Mul(d, v)
              [t] b = Tanh(q) [i] u = Identity(x) }>
    }"""
)


def feeds_for(model: onnx.ModelProto) -> dict[str, Array]:
    return {
        value.name: draw([d.dim_value for d in value.type.tensor_type.shape.dim], seed=k) / 2
        for k, value in enumerate(model.graph.input)
        if value.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE
    }


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("ys", [["y", "z"], ["y"], ["z"]])
def test_if(flag: bool, ys: list[str]) -> None:
    model = onnx.parser.parse_model(IF)

    def run(given: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
        return runtime(given, {**feeds, "flag": np.asarray(flag)})

    feeds = feeds_for(model)
    xs = [n for n in feeds if ys != ["z"] or n != "v"]
    trained = check((model, feeds), ys=ys, xs=xs, run=run)
    assert sum(node.op_type == "If" for node in trained.graph.node) == 2


LOOP = (
    HEAD
    + """g (double[2] h0, double[2,2] w) => (double[2] last, double[3,2] all)
        <int64 trips = {3}, bool go = {1}>
    {
        [loop] last, all = Loop(trips, go, h0) <body = step
            (int64 i, bool c, double[2] h) => (bool d, double[2] n, double[2] o)
            { [d] d = Identity(c) [f] f = Cast<to = 11>(i) [m] m = MatMul(h, w) [a] a = Add(m, f)
              [n] n = Tanh(a) [o] o = Identity(n) }>
    }"""
)


def test_loop() -> None:
    """By ONNX Runtime, the forward as a Loop and the training graph with Scans."""
    model = onnx.parser.parse_model(LOOP)
    trained = check((model, feeds_for(model)), run=runtime)
    assert {node.op_type for node in trained.graph.node} & {"Loop", "Scan"} == {"Scan"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[d] d = Identity(c)", "[z] z = ReduceSum<keepdims = 0>(h) [d] d = Cast<to = 9>(z)"),
        ("int64 trips = {3}", "int64 trips = {9223372036854775807}"),
    ],
)
def test_a_loop_that_data_ends_is_refused(old: str, new: str) -> None:
    model = onnx.parser.parse_model(LOOP.replace(old, new))
    with pytest.raises(ModelError, match="Loop 'loop' runs as often as data decides"):
        build_gradients(model, Request(("last",), ("h0",)))
