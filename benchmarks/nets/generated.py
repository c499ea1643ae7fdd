"""Training graphs of any number of nodes, generated without PyTorch.

``transformer``: nodes, sizes and durations of a decoder of width 1024 with 16 heads, batch 8 of 512
tokens, in single precision: forward, loss and backward, weight gradients consumed at once.
Durations are a roofline of 15 TFLOP/s and 700 GB/s with 3 us per node. 300 layers are 16,210 nodes.

``chain``: an ONNX model of square linear layers with Tanh: forward, loss, backward, and the update
of every weight with momentum, so that there are as many outputs, parameters and modules as layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import onnx
from onnx import helper

from benchmarks.plans.instances import Instance

_BATCH, _TOKENS, _WIDTH, _HEADS, _CLASSES = 8, 512, 1024, 16, 1024
_FLOPS, _BYTES, _LATENCY = 15e12, 700e9, 3e-6
_ROWS = _BATCH * _TOKENS
_SIDE = 64
PER_LAYER = 11
"""Nodes of a chain."""
_FLOAT = onnx.TensorProto.FLOAT

Gradients = list[tuple[int, int]]
"""(forward node, node that makes the gradient of its output)."""
Backward = Callable[[int], Gradients]
"""From the node that makes the gradient of the output."""


@dataclass(slots=True)
class Tape:
    """A graph under construction: nodes, and what each forward node does in backward."""

    elements: list[int] = field(default_factory=list)
    nanoseconds: list[int] = field(default_factory=list)
    reads: list[tuple[int, ...]] = field(default_factory=list)
    steps: list[tuple[int, Backward]] = field(default_factory=list)

    def node(self, elements: int, flops: float, reads: Sequence[int]) -> int:
        """Append a node that makes ``elements`` numbers of four bytes."""
        moved = 4 * (elements + sum(self.elements[u] for u in reads))
        seconds = _LATENCY + flops / _FLOPS + moved / _BYTES
        self.elements.append(elements)
        self.nanoseconds.append(round(1e9 * seconds))
        self.reads.append(tuple(sorted(set(reads))))
        return len(self.elements) - 1

    def forward(self, elements: int, flops: float, reads: Sequence[int], backward: Backward) -> int:
        """Append a forward node."""
        made = self.node(elements, flops, reads)
        self.steps.append((made, backward))
        return made

    def linear(self, x: int, inner: int, outer: int) -> int:
        """``x`` (rows, inner) times a weight matrix."""
        flops = 2.0 * _ROWS * inner * outer

        def backward(gradient: int) -> Gradients:
            self.node(inner * outer, flops, [x, gradient])
            return [(x, self.node(_ROWS * inner, flops, [gradient]))]

        return self.forward(_ROWS * outer, flops, [x], backward)

    def product(self, a: int, b: int, elements: int) -> int:
        """The product of two activations."""
        flops = 2.0 * _ROWS * _TOKENS * _WIDTH

        def backward(gradient: int) -> Gradients:
            return [
                (a, self.node(self.elements[a], flops, [gradient, b])),
                (b, self.node(self.elements[b], flops, [gradient, a])),
            ]

        return self.forward(elements, flops, [a, b], backward)

    def map(self, x: int, flops: int, needs: str = "") -> int:
        """An elementwise node whose gradient ``needs`` its input (x), its output (y) or neither."""
        size = self.elements[x]

        def backward(gradient: int) -> Gradients:
            needed = {"x": [x], "y": [made], "": []}[needs]
            return [(x, self.node(size, flops * size, [gradient, *needed]))]

        made = self.forward(size, flops * size, [x], backward)
        return made

    def add(self, a: int, b: int) -> int:
        """A residual sum; the gradient passes through."""
        size = self.elements[a]
        return self.forward(size, size, [a, b], lambda gradient: [(a, gradient), (b, gradient)])

    def finish(self, loss: int) -> None:
        """Append the backward part."""
        found: dict[int, list[int]] = {loss: [self.node(1, 0, [loss])]}
        for made, backward in reversed(self.steps):
            if made not in found:
                continue
            first, *others = found.pop(made)
            for other in others:
                first = self.node(self.elements[first], self.elements[first], [first, other])
            for source, gradient in backward(first):
                found.setdefault(source, []).append(gradient)


def transformer(layers: int) -> Instance:
    """The training graph of a decoder with ``layers`` layers."""
    tape = Tape()
    x = tape.node(_ROWS * _WIDTH, 0, [])
    for _ in range(layers):
        x = _feed_forward(tape, _attention(tape, x))
    x = tape.linear(tape.map(x, 8, "x"), _WIDTH, _CLASSES)
    scores = tape.map(x, 6, "y")
    size = tape.elements[scores]
    loss = tape.forward(
        1,
        size,
        [scores],
        lambda gradient: [(scores, tape.node(size, size, [gradient, scores]))],
    )
    tape.finish(loss)
    count = len(tape.elements)
    return Instance(
        f"transformer{layers}",
        tuple(range(count)),
        tuple(tape.nanoseconds),
        tuple(4 * elements for elements in tape.elements),
        tuple(tape.reads),
    )


def _attention(tape: Tape, x: int) -> int:
    normed = tape.map(x, 8, "x")
    query, key, value = (
        tape.map(made, 1) for made in [tape.linear(normed, _WIDTH, _WIDTH) for _ in range(3)]
    )
    scores = tape.product(query, key, _BATCH * _HEADS * _TOKENS * _TOKENS)
    weights = tape.map(tape.map(tape.map(scores, 1), 1), 6, "y")
    mixed = tape.product(weights, value, _ROWS * _WIDTH)
    return tape.add(x, tape.map(tape.linear(mixed, _WIDTH, _WIDTH), 1))


def _feed_forward(tape: Tape, x: int) -> int:
    hidden = tape.map(tape.linear(tape.map(x, 8, "x"), _WIDTH, 4 * _WIDTH), 1)
    out = tape.linear(tape.map(hidden, 12, "x"), 4 * _WIDTH, _WIDTH)
    return tape.add(x, tape.map(out, 1))


def chain(nodes: int) -> onnx.ModelProto:
    """A training graph of about so many nodes."""
    layers = max(1, (nodes - 2) // PER_LAYER)
    square = [_SIDE, _SIDE]
    made: list[onnx.NodeProto] = []

    def node(op: str, inputs: Sequence[str], output: str, **attributes: object) -> str:
        made.append(helper.make_node(op, inputs, [output], name=f"n/{output}", **attributes))
        return output

    last = "x"
    for k in range(layers):
        hidden = node("MatMul", [last, f"layers.{k}.weight"], f"h{k}")
        last = node("Tanh", [hidden], f"a{k}")
    node("ReduceMean", [last], "loss", keepdims=0)
    gradient = node("Mul", [last, "scale"], f"d{layers - 1}")
    for k in reversed(range(layers)):
        source = f"a{k - 1}" if k else "x"
        squared = node("Mul", [f"a{k}", f"a{k}"], f"s{k}")
        slope = node("Sub", ["one", squared], f"o{k}")
        inner = node("Mul", [gradient, slope], f"g{k}")
        by_weight = node("Gemm", [source, inner], f"w{k}", transA=1)
        gradient = node("Gemm", [inner, f"layers.{k}.weight"], f"d{k - 1}", transB=1)
        kept, name = f"layers.{k}.weight.momentum", f"layers.{k}.weight"
        scaled = node("Mul", [kept, "decay"], f"k{k}")
        speed = node("Add", [scaled, by_weight], f"{kept}_new")
        change = node("Mul", [speed, "lr"], f"c{k}")
        node("Sub", [name, change], f"{name}_new")
    weights = [f"layers.{k}.weight{part}" for k in range(layers) for part in ("", ".momentum")]
    squares = [helper.make_tensor_value_info(name, _FLOAT, square) for name in weights]
    results = [helper.make_tensor_value_info(f"{name}_new", _FLOAT, square) for name in weights]
    graph = helper.make_graph(
        made,
        "chain",
        [
            helper.make_tensor_value_info("x", _FLOAT, square),
            helper.make_tensor_value_info("lr", _FLOAT, []),
            *squares,
        ],
        [helper.make_tensor_value_info("loss", _FLOAT, []), *results],
        [helper.make_tensor(name, _FLOAT, [], [0.5]) for name in ("scale", "one", "decay")],
    )
    opset = [helper.make_opsetid("", 20)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=10)
    return onnx.shape_inference.infer_shapes(model)  # exporters and memplan grad state all shapes
