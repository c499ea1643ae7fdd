"""Updates against torch.optim, over several steps: float64 by ONNX's evaluator, float32 by ONNX
Runtime; inside the training graph, and as a graph of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest

from helpers.gradients import Array, Run, draw, in_float32, reference, runtime
from helpers.graphs import parse
from memplan.api.grad.result import GradOptions
from memplan.api.grad.run import grad

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.ort

SHAPES = {"w1": (3, 5), "b1": (5,), "w2": (2, 5, 4), "scale": ()}
FORWARD = """
    g (double[6,3] x, double[2,6,4] t, double[3,5] w1, double[5] b1, double[2,5,4] w2, double scale)
      => (double loss)
    { a = MatMul(x, w1)  b = Add(a, b1)  c = Tanh(b)  d = MatMul(c, w2)  e = Mul(d, scale)
      f = Sub(e, t)  g = Mul(f, f)  loss = ReduceMean <keepdims = 0> (g) }"""
STEPS = 6
RATE = 0.03125  # exact in float32, as all that is fed
Make = Callable[..., Any]


def forward() -> onnx.ModelProto:
    model = parse(FORWARD)
    kept = [value for value in model.graph.input if value.name not in SHAPES]
    del model.graph.input[len(kept) :]
    for k, (name, shape) in enumerate(SHAPES.items()):
        model.graph.initializer.append(onnx.numpy_helper.from_array(draw(shape, k), name))
    return model


def batch(t: int, dtype: type) -> dict[str, Array]:
    """Of step ``t``; the second one has large gradients, so that clipping bites."""
    size = 8.0 if t == 2 else 1.0
    return {
        "x": (size * draw((6, 3), 10 + t)).astype(dtype),
        "t": draw((2, 6, 4), 20 + t).astype(dtype),
    }


class Network:
    """The same network in PyTorch."""

    def __init__(self, dtype: type) -> None:
        self.parameters = {
            name: torch.tensor(draw(shape, k).astype(dtype), requires_grad=True)
            for k, (name, shape) in enumerate(SHAPES.items())
        }

    def backward(self, given: Mapping[str, Array]) -> None:
        """Add the gradients of a batch."""
        x, t = (torch.tensor(given[name]) for name in ("x", "t"))
        p = self.parameters
        found = (torch.tanh(x @ p["w1"] + p["b1"]) @ p["w2"]) * p["scale"]
        ((found - t) ** 2).mean().backward()


def pick(kind: str, **options: Any) -> Make:
    return partial(getattr(torch.optim, kind), **options)


def lion(parameters: Any, lr: float, **options: Any) -> Any:
    return Lion(parameters, lr, **options)


class Lion:
    """Algorithm 2 of arXiv:2302.06675, line by line."""

    def __init__(
        self, parameters: Any, lr: float, beta1: float = 0.9, beta2: float = 0.99, decay: float = 0
    ) -> None:
        self.parameters = list(parameters)
        self.lr, self.beta1, self.beta2, self.decay = lr, beta1, beta2, decay
        self.m = [torch.zeros_like(p) for p in self.parameters]

    def zero_grad(self) -> None:
        for p in self.parameters:
            p.grad = None

    def step(self) -> None:
        with torch.no_grad():
            for p, m in zip(self.parameters, self.m, strict=True):
                c = self.beta1 * m + (1 - self.beta1) * p.grad
                p -= self.lr * (torch.sign(c) + self.decay * p)
                m.copy_(self.beta2 * m + (1 - self.beta2) * p.grad)


CASES: list[tuple[str, Make]] = [
    ("sgd", pick("SGD")),
    ("sgd{weight_decay=0.25}", pick("SGD", weight_decay=0.25)),
    ("momentum", pick("SGD", momentum=0.9)),
    ("momentum{dampening=0.25,weight_decay=0.25}",
     pick("SGD", momentum=0.9, dampening=0.25, weight_decay=0.25)),
    ("momentum{momentum=0.8,nesterov=1}", pick("SGD", momentum=0.8, nesterov=True)),
    ("adam", pick("Adam")),
    ("adam{beta1=0.8,beta2=0.95,weight_decay=0.25}",
     pick("Adam", betas=(0.8, 0.95), weight_decay=0.25)),
    ("adamw{weight_decay=0.25}", pick("AdamW", weight_decay=0.25)),
    ("rmsprop", pick("RMSprop")),
    ("rmsprop{momentum=0.5,weight_decay=0.25}", pick("RMSprop", momentum=0.5, weight_decay=0.25)),
    ("adagrad{lr_decay=0.125}", pick("Adagrad", lr_decay=0.125)),
    ("adagrad{weight_decay=0.25}", pick("Adagrad", weight_decay=0.25)),
    ("adafactor", pick("Adafactor")),
    ("adafactor{weight_decay=0.25,d=1.5,decay_rate=0.5}",
     pick("Adafactor", weight_decay=0.25, d=1.5, beta2_decay=-0.5)),
    ("lion{weight_decay=0.25}", partial(lion, decay=0.25)),
]  # fmt: skip
KINDS = {
    "float64": (np.float64, reference, 1e-11),
    "float32": (np.float32, runtime, 2e-4),
}


def clip_norm(parameters: Any) -> None:
    torch.nn.utils.clip_grad_norm_(list(parameters), 1.0)


def clip_value(parameters: Any) -> None:
    torch.nn.utils.clip_grad_value_(list(parameters), 0.125)


def nothing(parameters: Any) -> None:
    pass
