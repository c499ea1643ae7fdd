"""Random training graphs: layers of all kinds, recurrent ones, bodies that capture, Dropout."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import memplan
from memplan.errors import MemplanError

_FLOAT = TensorProto.FLOAT
_ROWS = 6  # of every value; the number of columns differs
_UNARY = ("Tanh", "Sigmoid", "Relu", "Exp", "Softplus", "Erf", "Gelu", "Neg", "Identity")


@dataclass(slots=True)
class Draft:
    """A graph under construction; ``columns`` of each value, which has ``_ROWS`` rows."""

    r: random.Random
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    columns: dict[str, int] = field(default_factory=dict)
    last: str = "x"

    def fresh(self) -> str:
        return f"t{len(self.nodes)}_{len(self.constants)}"

    def constant(self, value: object, kind: type = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, kind), name))
        return name

    def weight(self, *shape: int) -> str:
        name = self.constant(np.full(shape, 0.1))
        self.weights.append(name)
        return name

    def add(self, op: str, inputs: list[str], count: int = 1, **attributes: object) -> list[str]:
        made = [f"{self.fresh()}{'abc'[k]}" for k in range(count)]
        self.nodes.append(
            helper.make_node(op, inputs, made, name=f"n{len(self.nodes)}", **attributes)
        )
        return made

    def done(self, name: str, columns: int) -> None:
        self.columns[name] = columns
        self.last = name

    def other(self, columns: int) -> str:
        """Any earlier value with so many columns."""
        return self.r.choice([name for name, width in self.columns.items() if width == columns])


def _linear(d: Draft, x: str, width: int) -> None:
    wider = d.r.choice((4, 8, 16))
    d.done(d.add("MatMul", [x, d.weight(width, wider)])[0], wider)


def _unary(d: Draft, x: str, width: int) -> None:
    d.done(d.add(d.r.choice(_UNARY), [x])[0], width)


def _binary(d: Draft, x: str, width: int) -> None:
    d.done(d.add(d.r.choice(("Add", "Mul", "Sub")), [x, d.other(width)])[0], width)


def _norm(d: Draft, x: str, width: int) -> None:
    d.done(d.add("LayerNormalization", [x, d.weight(width)], d.r.choice((1, 3)))[0], width)


def _softmax(d: Draft, x: str, width: int) -> None:
    d.done(d.add("Softmax", [x])[0], width)


def _dropout(d: Draft, x: str, width: int) -> None:
    inputs = [x, d.constant(0.25), d.constant(True, bool)]
    seed = {"seed": 7} if d.r.random() < 0.5 else {}
    d.done(d.add("Dropout", inputs, d.r.choice((1, 2)), **seed)[0], width)


def _attention(d: Draft, x: str, width: int) -> None:
    (turned,) = d.add("Transpose", [x], perm=[1, 0])
    scores = d.add("Softmax", d.add("MatMul", [x, turned]))
    d.done(d.add("MatMul", [*scores, x])[0], width)


def _halves(d: Draft, x: str, width: int) -> None:
    one, two = d.add("Split", [x], 2, axis=1, num_outputs=2)
    d.done(d.add("Concat", [two, *d.add("Tanh", [one])], axis=1)[0], width)


def _scaled(d: Draft, x: str, width: int) -> None:
    total = d.add("ReduceMean", [x, d.constant([1], np.int64)], keepdims=1)
    d.done(d.add("Mul", [x, *total])[0], width)


def _chosen(d: Draft, x: str, width: int) -> None:
    positive = d.add("Greater", [x, d.constant(0.0)])
    d.done(d.add("Where", [*positive, x, d.other(width)])[0], width)


def _flat(d: Draft, x: str, width: int) -> None:
    flat = d.add("Reshape", [x, d.constant([-1], np.int64)])
    (there,) = d.add("Exp", flat)
    d.done(d.add("Reshape", [there, d.constant([_ROWS, width], np.int64)])[0], width)


def _recurrent(d: Draft, x: str, width: int) -> None:
    op, hidden = d.r.choice(("LSTM", "GRU", "RNN")), d.r.choice((4, 8))
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    sequence = d.add("Unsqueeze", [x, d.constant([1], np.int64)])
    weights = [d.weight(1, gates * hidden, width), d.weight(1, gates * hidden, hidden)]
    y = d.add(op, [*sequence, *weights], d.r.choice((1, 2)), hidden_size=hidden)[0]
    d.done(d.add("Reshape", [y, d.constant([_ROWS, hidden], np.int64)])[0], hidden)


def _scan(d: Draft, x: str, width: int) -> None:
    captured, out = d.weight(width), d.fresh()
    nodes = [
        helper.make_node("Mul", ["e", captured], ["m"], name=f"{out}/m"),
        helper.make_node("Add", ["s", "m"], ["a"], name=f"{out}/a"),
        helper.make_node("Tanh", ["a"], ["t"], name=f"{out}/t"),
        helper.make_node("Identity", ["t"], ["o"], name=f"{out}/o"),
    ]
    body = helper.make_graph(nodes, "step", _infos("se", width), _infos("to", width))
    made = d.add("Scan", [d.constant(np.zeros(width)), x], 2, body=body, num_scan_inputs=1)
    d.done(made[1], width)


def _branches(d: Draft, x: str, width: int) -> None:
    other, out = d.other(width), d.fresh()
    one = [helper.make_node("Tanh", [x], ["p"]), helper.make_node("Mul", ["p", other], ["u"])]
    two = [helper.make_node("Sub", [other, x], ["v"])]
    bodies = {
        "then_branch": helper.make_graph(one, f"{out}/then", [], _infos("u", None)),
        "else_branch": helper.make_graph(two, f"{out}/else", [], _infos("v", None)),
    }
    d.done(d.add("If", ["flag"], **bodies)[0], width)


def _loop(d: Draft, x: str, width: int) -> None:
    captured = d.weight(width)
    nodes = [
        helper.make_node("Identity", ["c"], ["d"]),
        helper.make_node("Mul", ["v", captured], ["m"]),
        helper.make_node("Tanh", ["m"], ["w"]),
    ]
    given = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("v", _FLOAT, [_ROWS, width]),
    ]
    left = [
        helper.make_tensor_value_info("d", TensorProto.BOOL, []),
        helper.make_tensor_value_info("w", _FLOAT, [_ROWS, width]),
    ]
    body = helper.make_graph(nodes, "turn", given, left)
    counts = [d.constant(3, np.int64), d.constant(True, bool)]
    d.done(d.add("Loop", [*counts, x], body=body)[0], width)


def _infos(names: str, width: int | None) -> list[onnx.ValueInfoProto]:
    shape = None if width is None else [width]
    return [helper.make_tensor_value_info(name, _FLOAT, shape) for name in names]


_PLAIN: tuple[Callable[[Draft, str, int], None], ...] = (
    *(_linear, _linear, _unary, _unary, _binary, _norm, _softmax, _attention),
    *(_halves, _scaled, _chosen, _flat),
)
_SPECIAL: tuple[Callable[[Draft, str, int], None], ...] = (
    *(_dropout, _dropout, _recurrent, _scan, _branches, _loop),
)


def random_step(r: random.Random) -> onnx.ModelProto:
    """A random training graph; its forward part alone where that has no gradient."""
    draft = Draft(r)
    draft.columns["x"] = 8
    special = r.sample(_SPECIAL, r.randrange(3))
    for _ in range(r.randrange(4, 16)):
        layer = r.choice(special if special and r.random() < 0.3 else _PLAIN)
        x = draft.last if r.random() < 0.8 else r.choice(list(draft.columns))
        layer(draft, x, draft.columns[x])
    loss = _sum_of_ends(draft)
    extra = [name for name in draft.columns if name != "x"]
    outputs = [loss, *r.sample(extra, min(len(extra), r.choice((0, 0, 1, 2))))]
    graph = helper.make_graph(
        draft.nodes,
        "random",
        [
            helper.make_tensor_value_info("x", _FLOAT, [_ROWS, 8]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info(name, _FLOAT, None) for name in outputs],
        draft.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    model = onnx.shape_inference.infer_shapes(model)
    for parameters in (draft.weights, ["x"]):  # some weights may have no influence
        with suppress(MemplanError):
            return memplan.gradients(model, loss, parameters)
    return model


def _sum_of_ends(draft: Draft) -> str:
    """A loss that all values without a reader flow into."""
    read = {name for node in draft.nodes for name in node.input}
    ends = [name for name in draft.columns if name not in read] or [draft.last]
    loss, *sums = [draft.add("ReduceSum", [name], keepdims=0)[0] for name in ends]
    for term in sums:
        (loss,) = draft.add("Add", [loss, term])
    return loss
