"""A ``Scan`` or ``Loop`` with a constant number of steps, read: what stands where.

A ``Loop`` that reads a sequence with ``Gather`` at the iteration number, as JAX exports have it,
is read like a Scan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from memplan.ir.graph import ABSENT, Body, Graph, Node, Tensor

Values = Mapping[str, npt.NDArray[np.generic]]
"""Contents of small constants by name."""
_LOOP_FIXED = 2
"""A Loop's trip count and condition, before its states."""


@dataclass(frozen=True, slots=True)
class Slices:
    """The tensor ``name`` of the graph around, slice by slice along ``axis``; ``reversed_``: the
    first step has the last slice."""

    name: str
    axis: int
    reversed_: bool


@dataclass(frozen=True, slots=True)
class State:
    """``before`` and ``after`` are names in the body, ``initial`` is one of the graph around."""

    before: str
    after: str
    initial: str


@dataclass(frozen=True, slots=True)
class LoopCall:
    """A loop. Names of the body are roots: a chain of copies is known by what it starts from.

    ``slices`` (body → around) are read step by step, ``stacked`` (body, around) written;
    ``invariants`` (body → around) are the same at every step. ``counter`` is a Loop's iteration
    number. ``tensors`` of the body by name; ``graph`` is the body.
    """

    node: onnx.NodeProto
    index: int
    steps: int
    body: onnx.GraphProto
    graph: Graph
    slices: Mapping[str, Slices]
    states: tuple[State, ...]
    invariants: Mapping[str, str]
    stacked: tuple[tuple[str, Slices], ...]
    counter: str
    tensors: Mapping[str, Tensor]
    copies: Mapping[str, str]

    @property
    def is_scan(self) -> bool:
        """Whether it is a Scan, not a Loop."""
        return self.node.op_type == "Scan"

    def root(self, name: str) -> str:
        """What a chain of copies in the body starts from."""
        while name in self.copies:
            name = self.copies[name]
        return name


def body_of(node: onnx.NodeProto) -> onnx.GraphProto:
    """The body of a loop."""
    found: onnx.GraphProto = next(a.g for a in node.attribute if a.name == "body")
    return found


def read_call(proto: onnx.NodeProto, node: Node, graph: Graph, values: Values) -> LoopCall | None:
    """The loop ``node`` of ``graph``; None if it is none, or shapes or steps are not known."""
    inner = graph.bodies.get(node.id, ())
    if node.key not in (":Scan", ":Loop") or len(inner) != 1:
        return None
    body = inner[0]
    if body.graph is None or not body.trips:
        return None
    tensors = {tensor.name: tensor for tensor in body.graph.tensors}
    copies = _copies(body_of(proto), tensors)
    if node.op == "Scan":
        return _scan(proto, node, graph, body, tensors, copies)
    return _loop(proto, node, graph, body, tensors, copies, values)


def _copies(body: onnx.GraphProto, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Copy → source: ``Identity``, and ``Cast`` to the type that is there."""
    found = {}
    for node in body.node:
        if node.op_type == "Identity":
            found[node.output[0]] = node.input[0]
        elif node.op_type == "Cast":
            source, result = (tensors.get(name) for name in (node.input[0], node.output[0]))
            if source is not None and result is not None and source.dtype == result.dtype:
                found[result.name] = source.name
    return found


def _root(name: str, copies: Mapping[str, str]) -> str:
    while name in copies:
        name = copies[name]
    return name


def _scan(
    proto: onnx.NodeProto,
    node: Node,
    graph: Graph,
    body: Body,
    tensors: Mapping[str, Tensor],
    copies: Mapping[str, str],
) -> LoopCall | None:
    inside, scanned = body_of(proto), node.attributes.get("num_scan_inputs")
    if not isinstance(scanned, int) or graph.opset < 9 or body.graph is None or not body.trips:
        return None
    count = len(proto.input) - scanned
    names, results = [v.name for v in inside.input], [v.name for v in inside.output]
    before = zip(names[:count], results[:count], proto.input[:count], strict=True)
    return LoopCall(
        node=proto,
        index=node.id,
        steps=body.trips,
        body=inside,
        graph=body.graph,
        slices={
            inner: _slices(node, graph, slot, node.inputs[count + slot], "input")
            for slot, inner in enumerate(names[count:])
        },
        states=tuple(State(b, _root(a, copies), i) for b, a, i in before),
        invariants={},
        stacked=tuple(
            (_root(inner, copies), _slices(node, graph, slot, outer, "output"))
            for slot, (inner, outer) in enumerate(
                zip(results[count:], node.outputs[count:], strict=False)
            )
            if outer != ABSENT
        ),
        counter="",
        tensors=tensors,
        copies=copies,
    )


def _slices(node: Node, graph: Graph, slot: int, tensor: int, kind: str) -> Slices:
    def number(name: str) -> int:
        given = node.attributes.get(f"scan_{kind}_{name}", [])
        assert isinstance(given, list)
        return int(given[slot]) if slot < len(given) else 0

    found, axis = graph.tensors[tensor], number("axes")
    return Slices(
        found.name, axis + len(found.shape) if axis < 0 else axis, bool(number("directions"))
    )


def _loop(
    proto: onnx.NodeProto,
    node: Node,
    graph: Graph,
    body: Body,
    tensors: Mapping[str, Tensor],
    copies: Mapping[str, str],
    values: Values,
) -> LoopCall | None:
    inside, steps = body_of(proto), body.trips
    names, results = [v.name for v in inside.input], [v.name for v in inside.output]
    initial = list(proto.input[_LOOP_FIXED:])
    if body.graph is None or not steps or len(names) != _LOOP_FIXED + len(initial):
        return None
    condition = proto.input[1] if len(proto.input) > 1 else ""
    if condition and not np.all(values.get(condition, np.asarray(False))):
        return None
    if _root(results[0], copies) != names[1]:  # the condition may end the loop
        return None
    rows = list(zip(names[_LOOP_FIXED:], results[1:], initial, strict=False))
    same = {inner: outer for inner, after, outer in rows if _root(after, copies) == inner}
    return LoopCall(
        node=proto,
        index=node.id,
        steps=steps,
        body=inside,
        graph=body.graph,
        slices=_gathered(inside, names[0], steps, same, tensors, copies, values),
        states=tuple(State(b, _root(a, copies), i) for b, a, i in rows if b not in same),
        invariants=same,
        stacked=tuple(
            (_root(inner, copies), Slices(outer, 0, False))
            for inner, outer in zip(
                results[1 + len(initial) :], proto.output[len(initial) :], strict=False
            )
            if outer
        ),
        counter=names[0],
        tensors=tensors,
        copies=copies,
    )


def _gathered(
    body: onnx.GraphProto,
    counter: str,
    steps: int,
    same: Mapping[str, str],
    tensors: Mapping[str, Tensor],
    copies: Mapping[str, str],
    values: Values,
) -> dict[str, Slices]:
    """Sequences that the body reads with ``Gather`` at the iteration number, or at that counted
    from the end, along axis 0."""
    own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
    own |= {name for node in body.node for name in node.output}
    numbers = {**values, **{t.name: onnx.numpy_helper.to_array(t) for t in body.initializer}}
    mirrored = {
        node.output[0]
        for node in body.node
        if node.op_type == "Sub"
        and _root(node.input[1], copies) == counter
        and np.array_equal(numbers.get(node.input[0], np.asarray(-1)).reshape(-1), [steps - 1])
    }
    found = {}
    for node in body.node:
        index = _root(node.input[1], copies) if node.op_type == "Gather" else ""
        if index != counter and index not in mirrored:
            continue
        data = _root(node.input[0], copies)
        outer = same.get(data, "" if data in own else data)
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        shape = tensors[data].shape if data in tensors else ()
        if outer and axis == 0 and shape and shape[0] == steps:
            found[node.output[0]] = Slices(outer, 0, index in mirrored)
    return found
