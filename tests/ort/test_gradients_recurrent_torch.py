"""LSTM, GRU and a Scan RNN against PyTorch's autograd (skipped where torch is not there)."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import memplan
from helpers.gradients import runtime

torch: Any = pytest.importorskip("torch")
nn: Any = torch.nn
pytestmark = pytest.mark.ort

STEPS, BATCH, WIDTH, HIDDEN = 7, 3, 5, 4
TOLERANCE = 1e-4


class Net(nn.Module):  # type: ignore[misc]
    """A recurrent layer; the loss reads all steps and the last states."""

    def __init__(self, kind: str, layers: int, both: bool) -> None:
        super().__init__()
        layer = getattr(nn, kind)
        self.rnn = layer(WIDTH, HIDDEN, num_layers=layers, bidirectional=both)
        self.head = nn.Linear(HIDDEN * (2 if both else 1), 2)

    def forward(self, x: Any) -> Any:
        y, last = self.rnn(x)
        last = last if isinstance(last, tuple) else (last,)
        return self.head(y).square().mean() + sum((s * s * s).sum() for s in last)


def exported(net: Any, x: Any) -> onnx.ModelProto:
    """With the recurrent operators of ONNX; weights are initializers as the exporter makes them."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net,
            (x,),
            buffer,
            dynamo=False,
            opset_version=18,
            input_names=["x"],
            output_names=["loss"],
            do_constant_folding=False,
            keep_initializers_as_inputs=False,
        )
    return onnx.load_from_string(buffer.getvalue())


CASES = [
    ("LSTM", 1, False),
    ("LSTM", 2, True),
    ("GRU", 1, True),
    ("GRU", 2, False),
    ("RNN", 2, True),
]


@pytest.mark.parametrize(("kind", "layers", "both"), CASES)
def test_layers(kind: str, layers: int, both: bool) -> None:
    """By the input, which needs every weight, and by all parameters through the exporter's
    reordering of gates."""
    torch.manual_seed(0)
    net = Net(kind, layers, both)
    x = torch.randn(STEPS, BATCH, WIDTH, requires_grad=True)
    loss = net(x)
    loss.backward()
    model = exported(net, x.detach())
    assert kind in {node.op_type for node in model.graph.node}
    names = [name for name, _ in net.named_parameters()]
    known = {tensor.name for tensor in model.graph.initializer}
    assert set(names) <= known
    trained = memplan.gradients(model, "loss", ["x", *names])
    found = runtime(trained, {"x": x.detach().numpy()})
    np.testing.assert_allclose(found["loss"], loss.detach().numpy(), rtol=1e-5)
    wanted = {"x": x.grad, **{name: p.grad for name, p in net.named_parameters()}}
    for name, grad in wanted.items():
        largest = float(grad.abs().max())
        error = float(np.abs(found[f"{name}_grad"] - grad.numpy()).max()) / largest
        assert error <= TOLERANCE, (name, error)


SCAN = """
    <ir_version: 10, opset_import: ["" : 20]>
    rnn (double[6,2,3] x, double[2,4] h0, double[3,4] w, double[4,4] r, double[4] b)
        => (double loss)
    {
        [loop] last, all = Scan<num_scan_inputs = 1, body = step
            (double[2,4] h, double[2,3] xt) => (double[2,4] next, double[2,4] out)
            {
                [in] a = MatMul(xt, w)
                [rec] c = MatMul(h, r)
                [sum] s = Add(a, c)
                [bias] z = Add(s, b)
                [act] t = Tanh(z)
                [mix] m = Mul(t, h)
                [next] next = Add(t, m)
                [out] out = Mul(next, xt_scale)
            }>(h0, x)
        [square] sq = Mul(all, all)
        [total] s1 = ReduceSum<keepdims = 0>(sq)
        [end] s2 = ReduceSum<keepdims = 0>(last)
        [loss] loss = Add(s1, s2)
    }"""


def test_scan() -> None:
    """A Scan RNN in float64."""
    model = onnx.parser.parse_model(SCAN.replace("xt_scale", "b"))
    random = np.random.default_rng(0)
    feeds = {
        value.name: random.normal(size=[d.dim_value for d in value.type.tensor_type.shape.dim]) / 2
        for value in model.graph.input
    }
    given = {name: torch.tensor(array, requires_grad=True) for name, array in feeds.items()}
    h, outs = given["h0"], []
    for step in given["x"]:
        t = torch.tanh(step @ given["w"] + h @ given["r"] + given["b"])
        h = t + t * h
        outs.append(h * given["b"])
    loss = (torch.stack(outs) ** 2).sum() + h.sum()
    loss.backward()
    trained = memplan.gradients(model, "loss", list(feeds))
    found = runtime(trained, feeds)
    for name, tensor in given.items():
        np.testing.assert_allclose(found[f"{name}_grad"], tensor.grad.numpy(), rtol=1e-9)
