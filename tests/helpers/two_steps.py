"""Two training steps of one model, each with the other's weight as an input that it only reads."""

import numpy as np
import onnx
from onnx import numpy_helper

from helpers.graphs import parse
from memplan.api.grad.differentiate import grad
from memplan.api.grad.training_graph import GradOptions

_D = """d (float[batch, 3] x, float[batch, 2] z, float[3, 1] dw, float[2, 3] gw)
    => (float loss, float real) {
    made = MatMul(z, gw)  told = MatMul(made, dw)  known = MatMul(x, dw)
    up = Softplus(told)  less = Neg(known)  down = Softplus(less)  both = Add(up, down)
    loss = ReduceMean<keepdims = 0>(both)  real = ReduceMean<keepdims = 0>(known) }"""
_G = """g (float[4, 2] z, float[3, 1] dw, float[2, 3] gw) => (float loss) {
    made = MatMul(z, gw)  told = MatMul(made, dw)  less = Neg(told)  up = Softplus(less)
    loss = ReduceMean<keepdims = 0>(up) }"""
SHAPES = {"dw": (3, 1), "gw": (2, 3)}


def two_steps() -> dict[str, onnx.ModelProto]:
    """A discriminator's step and a generator's, with Adam; the first has a metric."""
    made = {}
    for name, text in (("d", _D), ("g", _G)):
        model = parse(text)
        draw = np.random.default_rng(0)
        for weight, shape in SHAPES.items():
            values = draw.normal(size=shape).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(values, weight))
        options = GradOptions(loss="loss", optimizer="adam{lr=0.01}", wrt=(f"{name}w",))
        made[name] = grad(model, options).model
    return made


def two_batches(count: int) -> list[dict[str, np.ndarray]]:
    """Batches of both inputs."""
    draw = np.random.default_rng(1)
    sizes = {"x": (4, 3), "z": (4, 2)}
    return [
        {name: draw.normal(size=size).astype(np.float32) for name, size in sizes.items()}
        for _ in range(count)
    ]
