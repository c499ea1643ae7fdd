"""Layers of :mod:`drafts`: gathers, scatters, bodies, functions and recurrent layers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from drafts import DOUBLE, Draft, Rejected
from layers import layer, some
from onnx import TensorProto, helper


def indices(d: Draft, shape: tuple[int, ...], size: int) -> str:
    """Numbers of elements, from either end, some of them twice."""
    if not size:
        raise Rejected
    least = -size if d.opset >= 11 else 0
    kind = d.r.choice((np.int64, np.int64, np.int32))
    found = [d.r.randrange(least, size) for _ in range(math.prod(shape))]
    if d.maybe(0.2):
        found = [k % size for k in range(len(found))]
    return d.constant(np.reshape(found, shape), kind)


@layer("Gather")
def gather(d: Draft, op: str) -> None:
    x = d.full(1, 4)
    rank = d.arrays[x].ndim
    axis = d.axis(rank) if d.opset >= 11 else d.r.randrange(rank)
    places = indices(d, d.shape(d.r.choice((0, 1, 1, 2))), d.arrays[x].shape[axis])
    d.add(op, [x, places], **({} if axis == 0 and d.maybe(0.5) else {"axis": axis}))


@layer("GatherElements")
def gather_elements(d: Draft, op: str) -> None:
    x = d.full(1, 4)
    shape = list(d.arrays[x].shape)
    axis = d.axis(len(shape))
    size = shape[axis]
    part = [n if d.maybe(0.6) else d.r.randint(1, n) for n in shape]
    part[axis] = d.r.choice((1, 2, 3))
    given = {} if axis == 0 and d.maybe(0.5) else {"axis": axis}
    d.add(op, [x, indices(d, tuple(part), size)], **given)


def _places(d: Draft, shape: tuple[int, ...], depth: int, lead: tuple[int, ...]) -> str:
    columns = [
        [d.r.randrange(-n, n) for _ in range(math.prod(lead))] if n else [] for n in shape[:depth]
    ]
    if not all(columns) and math.prod(lead):
        raise Rejected
    return d.ints(np.reshape(np.transpose(columns), (*lead, depth)))


@layer("GatherND")
def gather_nd(d: Draft, op: str) -> None:
    x = d.full(1, 4)
    shape = d.arrays[x].shape
    batch = d.r.randint(0, min(1, len(shape) - 1)) if d.opset >= 12 else 0
    depth = d.r.randint(1, len(shape) - batch)
    lead = (*shape[:batch], *d.shape(d.r.choice((0, 1, 2))))
    places = _places(d, shape[batch:], depth, lead)
    d.add(op, [x, places], **({"batch_dims": batch} if batch or d.maybe(0.2) else {}))


@layer("ScatterElements")
def scatter_elements(d: Draft, op: str) -> None:
    x = d.full(1, 3)
    shape = list(d.arrays[x].shape)
    axis = d.axis(len(shape))
    part = [d.r.randint(1, n) for n in shape]
    part[axis] = d.r.randint(1, shape[axis])
    kinds = ("none", "add", "add", "mul", "max") if d.opset >= 18 else ("none", "add")
    reduction = d.r.choice(kinds) if d.opset >= 16 and d.maybe(0.7) else None
    if reduction in (None, "none"):  # which of two updates of one element stays is not defined
        order = np.argsort(d.numbers(shape), axis=axis)
        places = d.ints(order[tuple(slice(n) for n in part)])
    else:
        places = indices(d, tuple(part), shape[axis])
    updates = d.of(part)
    given = {} if axis == 0 and d.maybe(0.5) else {"axis": axis}
    d.add(op, [x, places, updates], reduction=reduction, **given)


@layer("ScatterND")
def scatter_nd(d: Draft, op: str) -> None:
    x = d.full(1, 3)
    shape = d.arrays[x].shape
    depth = d.r.randint(1, len(shape))
    kinds = ("none", "add", "add", "mul") if d.opset >= 16 else ("none",)
    reduction = d.r.choice(kinds) if d.opset >= 16 and d.maybe(0.7) else None
    if reduction in (None, "none"):
        every = list(np.ndindex(*shape[:depth]))
        chosen = d.r.sample(every, d.r.randint(1, len(every)))
        signs = [
            [k - n if d.maybe(0.3) else k for k, n in zip(place, shape, strict=False)]
            for place in chosen
        ]
        places, lead = d.ints(signs), (len(chosen),)
    else:
        lead = d.shape(d.r.choice((1, 2)))
        places = _places(d, shape, depth, lead)
    d.add(op, [x, places, d.of((*lead, *shape[depth:]))], reduction=reduction)


@layer("TopK")
def top(d: Draft, op: str) -> None:
    x = d.full(1, 4)
    rank = d.arrays[x].ndim
    axis = d.axis(rank) if d.opset >= 11 else d.r.randrange(rank)
    given: dict[str, Any] = {} if axis in (-1, rank - 1) and d.maybe(0.5) else {"axis": axis}
    if d.opset >= 11:
        given |= some(d, largest=(0, 1))
    k = d.ints([d.r.randint(1, d.arrays[x].shape[axis])])
    d.add(op, [x, k] if d.opset >= 10 else [x], 2, **given)


@layer("ReverseSequence")
def reverse_sequence(d: Draft, op: str) -> None:
    x = d.full(2, 4)
    shape = d.arrays[x].shape
    time = d.r.choice((0, 1))
    lengths = d.ints([d.r.randint(1, shape[time]) for _ in range(shape[1 - time])])
    given = {} if time == 0 and d.maybe(0.5) else {"time_axis": time, "batch_axis": 1 - time}
    d.add(op, [x, lengths], **given)


# -- losses ----------------------------------------------------------------------------------------


@layer("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
def loss(d: Draft, op: str) -> None:
    x = d.full(2, 4)
    n, c, *rest = d.arrays[x].shape
    if op == "NegativeLogLikelihoodLoss" and d.maybe(0.5):
        (x,) = d.add("LogSoftmax", [x], axis=1)
    # Of a mean that ignores -1, onnx.reference (1.23) counts what it ignores.
    ignored = d.r.choice((None, None, 0, -2, c))
    labels = [d.r.randrange(c) for _ in range(n * math.prod(rest))]
    if ignored is not None:
        labels = [ignored if d.maybe(0.3) else k for k in labels]
    inputs = [x, d.ints(np.reshape(labels, (n, *rest)))]
    if d.maybe(0.4):
        inputs.append(d.constant(d.numbers((c,), 0.2, 2.0)))
    given = some(d, reduction=("mean", "sum", "none"))
    count = d.r.choice((1, 2)) if op == "SoftmaxCrossEntropyLoss" else 1
    d.add(op, inputs, count, ignore_index=ignored, **given)


# -- bodies ----------------------------------------------------------------------------------------


def _graph(name: str, nodes: list[Any], given: list[Any], left: list[Any]) -> Any:
    return helper.make_graph(nodes, name, given, left)


def _info(name: str, shape: Any, kind: int = DOUBLE) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def _binary(d: Draft, a: str, b: str, out: str) -> Any:
    return helper.make_node(d.r.choice(("Mul", "Add", "Sub")), [a, b], [out], name=d.name("inner"))


def _unary(d: Draft, a: str, out: str) -> Any:
    op = d.r.choice(("Tanh", "Sigmoid", "Sin", "Identity"))
    return helper.make_node(op, [a], [out], name=d.name("inner"))


@layer("If")
def branches(d: Draft, op: str) -> None:
    a = d.pick()
    b = a if d.maybe(0.2) else d.of(d.arrays[a].shape)
    p, u, v = d.name("b"), d.name("b"), d.name("b")
    one = [_unary(d, a, p), _binary(d, p, b, u)]
    two = [_binary(d, b, a, v)] if d.maybe(0.7) else [_unary(d, a, v)]
    bodies = {
        "then_branch": _graph(d.name("then"), one, [], [_info(u, None)]),
        "else_branch": _graph(d.name("else"), two, [], [_info(v, None)]),
    }
    d.add(op, [d.constant(d.maybe(0.5), bool)], **bodies)


@layer("Loop")
def loop(d: Draft, op: str) -> None:
    x = d.ranked(0, 2)
    shape = d.arrays[x].shape
    w = d.of(shape)
    i, c, keep, v, m, out, each = (d.name("b") for _ in range(7))
    nodes = [
        helper.make_node("Identity", [c], [keep]),
        _binary(d, v, w, m),
        _unary(d, m, out),
        _unary(d, v, each),
    ]
    stacks = d.maybe(0.5)
    given = [_info(i, [], TensorProto.INT64), _info(c, [], TensorProto.BOOL), _info(v, shape)]
    left = [_info(keep, [], TensorProto.BOOL), _info(out, shape)]
    left += [_info(each, shape)] if stacks else []
    body = _graph(d.name("turn"), nodes if stacks else nodes[:-1], given, left)
    trips = d.r.choice((1, 3) if stacks else (0, 1, 3))
    made = d.add(op, [d.ints(trips), d.constant(True, bool), x], 1 + stacks, body=body)
    if stacks:  # onnx.reference has the steps behind each other
        d.arrays[made[1]] = d.arrays[made[1]].reshape(trips, *shape)


@layer("Scan")
def scan(d: Draft, op: str) -> None:
    row = d.shape(d.r.choice((0, 1, 2)))
    count, times = d.r.choice((1, 1, 2)), d.r.choice((1, 2, 3))
    given: dict[str, Any] = {}
    axis = 0
    if d.opset >= 11 and d.maybe(0.4):
        axis = d.r.randint(-len(row) - 1, len(row))
        given["scan_input_axes"] = [axis] * count
    if d.maybe(0.4):
        given["scan_input_directions"] = [d.r.choice((0, 1)) for _ in range(count)]
    if d.maybe(0.4):
        given["scan_output_directions"] = [d.r.choice((0, 1))]
    if d.opset >= 11 and d.maybe(0.3):
        given["scan_output_axes"] = [d.r.randint(-len(row) - 1, len(row))]
    whole = list(row)
    whole.insert(axis if axis >= 0 else len(row) + 1 + axis, times)
    sequences = [d.of(whole) for _ in range(count)]
    start, w = d.of(row), d.of(row)
    s, m, a, t = (d.name("b") for _ in range(4))
    items = [d.name("b") for _ in range(count)]
    nodes = [_binary(d, items[-1], w, m), _binary(d, s, items[0], a)]
    final, seen = d.name("b"), d.name("b")
    nodes += [_binary(d, a, m, t), _unary(d, t, final), _unary(d, d.r.choice((t, a, s)), seen)]
    body = _graph(
        d.name("step"),
        nodes,
        [_info(name, row) for name in (s, *items)],
        [_info(final, row), _info(seen, row)],
    )
    d.add(op, [start, *sequences], 2, body=body, num_scan_inputs=count, **given)


@layer("a function")
def function(d: Draft, op: str) -> None:
    """A function of the model, of which one input may be left unread."""
    a = d.pick()
    b = d.of(d.arrays[a].shape)
    name = d.name("Local")
    nodes = [
        helper.make_node(d.r.choice(("Tanh", "Sin")), ["a"], ["p"]),
        helper.make_node(d.r.choice(("Mul", "Add")), ["p", d.r.choice(("a", "b"))], ["q"]),
    ]
    made = helper.make_function(
        "local", name, ["a", "b"], ["q", "p"], nodes, [helper.make_opsetid("", d.opset)]
    )
    d.functions.append(made)
    d.add(name, [a, d.r.choice((a, b))], 2, domain="local")


@layer("LSTM", "GRU", "RNN")
def recurrent(d: Draft, op: str) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    steps, batch, width, hidden = (d.r.choice((1, 2)), d.r.choice((1, 2)), d.r.choice((1, 2, 3)), 2)
    layout = {} if d.opset < 14 else some(d, layout=(0,))
    inputs = [
        d.of((steps, batch, width)),
        d.leaf((1, gates * hidden, width)),
        d.leaf((1, gates * hidden, hidden)),
    ]
    inputs.append(d.of((1, 2 * gates * hidden)) if d.maybe(0.5) else "")
    inputs.append("")
    inputs.append(d.of((1, batch, hidden)) if d.maybe(0.4) else "")
    if op == "LSTM":
        inputs.append(d.of((1, batch, hidden)) if d.maybe(0.4) else "")
    given = some(d, linear_before_reset=(0, 1)) if op == "GRU" else {}
    d.add(op, inputs, d.r.choice((1, 2)), hidden_size=hidden, **layout, **given)
