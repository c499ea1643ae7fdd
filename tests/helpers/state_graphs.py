"""Random training steps with state: weights read early and late, through views, and renewed."""

from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROWS, WIDTH = 8, 16
_F = TensorProto.FLOAT


class _Step:
    """A graph under construction. All tensors are of one size, but for biases and views."""

    def __init__(self, seed: int) -> None:
        self.r = Random(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.live = ["x"]
        self.count = 0

    def add(self, op: str, *inputs: str, **attributes: object) -> str:
        self.count += 1
        name = f"t{self.count}"
        self.nodes.append(helper.make_node(op, inputs, [name], f"n{self.count}", **attributes))
        return name

    def pick(self) -> str:
        return self.r.choice(self.live[-4:])


def state_step(seed: int, layers: int = 6) -> onnx.ModelProto:
    """A step of some layers with a square weight each, and an update of every weight.

    Weights are read by products, sums, transposes and views; some late, after their update or
    inside of it by something other than its own elements; some updates do not read the weight.
    """
    step = _Step(seed)
    r = step.r
    weights = [f"w{k}" for k in range(layers)]
    for weight in weights:
        kind = r.randrange(4)
        if kind == 0:
            weight = step.add("Transpose", weight, perm=[1, 0])
        elif kind == 1:
            weight = step.add("Reshape", weight, "square")
        made = step.add("MatMul", step.pick(), weight)
        step.live.append(step.add(r.choice(("Relu", "Tanh", "Sigmoid")), made))
        if r.random() < 0.5:
            step.live.append(step.add("Add", step.pick(), step.pick()))
    loss = step.add("ReduceMean", step.live[-1], keepdims=0)
    grads = step.live[-1]
    waiting = list(reversed(weights))
    outputs: list[str] = []
    while waiting:
        weight = waiting.pop(0)
        # "Gradients": they read activations, and often another weight.
        grads = step.add("Mul", grads, step.r.choice(step.live[1:]))
        if r.random() < 0.7:
            grads = step.add("MatMul", grads, r.choice(weights))
        gradient = step.add("MatMul", step.add("Transpose", step.pick(), perm=[1, 0]), grads)
        outputs.append(_update(step, weight, gradient))
    if r.random() < 0.3:
        late = step.add("Add", r.choice(weights), "row")
        outputs.append(late)
    return _model(step, weights, [loss, *outputs])


def _update(step: _Step, weight: str, gradient: str) -> str:
    """The new value of a weight, in one of several ways."""
    r = step.r
    small = step.add("Mul", gradient, "rate")
    way = r.randrange(8)
    if way < 4:
        made = step.add("Sub", weight, small)
    elif way == 4:  # decay first: the maker does not read the weight
        made = step.add("Sub", step.add("Mul", weight, "rate"), small)
    elif way == 5:  # reads other elements than its own
        made = step.add("MatMul", weight, small)
    elif way == 6:  # through a view
        made = step.add("Sub", step.add("Reshape", weight, "square"), small)
    else:  # of three
        made = step.add("Sum", small, small, weight)
    new = f"{weight}_new"
    for name in (made,):
        step.nodes[-1].output[0] = new if step.nodes[-1].output[0] == name else name
    if r.random() < 0.15:
        step.live.append(step.add("MatMul", step.pick(), weight))  # behind the update
    return new


def _model(step: _Step, weights: list[str], outputs: list[str]) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    shapes = {name: [WIDTH, WIDTH] for name in weights}
    graph = helper.make_graph(
        step.nodes,
        "step",
        [value("x", _F, [ROWS, WIDTH]), *(value(n, _F, s) for n, s in shapes.items())],
        [
            value(name, _F, [] if k == 0 else [WIDTH, WIDTH])
            for k, name in enumerate(dict.fromkeys(outputs))
        ],
        [
            numpy_helper.from_array(np.asarray([WIDTH, WIDTH], np.int64), "square"),
            numpy_helper.from_array(np.full((1, WIDTH), 0.5, np.float32), "row"),
            numpy_helper.from_array(np.asarray(0.01, np.float32), "rate"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def feeds(seed: int, model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Values for the inputs."""
    generator = np.random.default_rng(seed)
    found = {}
    for given in model.graph.input:
        shape = [d.dim_value for d in given.type.tensor_type.shape.dim]
        found[given.name] = (generator.standard_normal(shape) * 0.3).astype(np.float32)
    return found
