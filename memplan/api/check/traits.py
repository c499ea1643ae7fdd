"""What a graph is apart from its names: enough to say later *why* a peak has grown.

A lock keeps it beside the figures, so that a cause can be named when the old model is gone:

1. ``structure``: a hash of nodes, attributes, shapes and connections that is the same whatever
   things are called and in whichever order the nodes stand.
2. ``operators``: how many nodes of each; a fused operator that fell apart shows there.
3. ``types``: how many computed tensors of each element type.
4. ``inputs``: type and shape of what one step is fed, so that a larger batch is called one.
"""

from __future__ import annotations

import hashlib
from collections import Counter

import onnx

from memplan.ir.graph import ABSENT, Graph, Tensor, TensorKind

MOST_INPUTS = 12
"""Inputs that a lock lists: a step has few, and a graph with hundreds must not swell it."""


def structure(graph: Graph) -> str:
    """The hash of a graph that knows neither names nor the order of nodes."""
    known: dict[int, bytes] = {}
    total = 0
    for node in graph.nodes:
        digest = hashlib.blake2b(digest_size=16)
        digest.update(repr((node.key, sorted(node.attributes.items(), key=_name))).encode())
        for body in graph.bodies.get(node.id, ()):
            inner = "" if body.graph is None else structure(body.graph)
            digest.update(f"{body.attribute} {body.trips} {inner};".encode())
        for t in (*node.inputs, *node.captured):
            digest.update(b"-" if t == ABSENT else known.get(t) or _source(graph.tensors[t]))
        for t in node.outputs:
            digest.update(b"-" if t == ABSENT else _type(graph.tensors[t]).encode())
        made = digest.digest()
        for slot, t in enumerate(node.outputs):
            if t != ABSENT:
                known[t] = made + bytes([slot % 256])
        total += int.from_bytes(made)
    for t in graph.outputs:
        total += int.from_bytes(hashlib.blake2b(known.get(t, b"in"), digest_size=16).digest())
    return f"{total % 2**128:032x}"


def operators_of(graph: Graph) -> dict[str, int]:
    """How many nodes of each operator."""
    ops = Counter(f"{n.domain}:{n.op}" if n.domain else n.op for n in graph.nodes)
    return dict(sorted(ops.items()))


def element_types(graph: Graph) -> dict[str, int]:
    """How many computed tensors of each element type."""
    computed = (t for t in graph.tensors if t.kind is TensorKind.COMPUTED)
    return dict(sorted(Counter(_type_name(tensor.dtype) for tensor in computed).items()))


def inputs_of(graph: Graph, fed: tuple[str, ...]) -> dict[str, str]:
    """The inputs named ``fed`` and what they are: ``float32[8,128]``."""
    found = [graph.tensor_named(name) for name in fed[:MOST_INPUTS]]
    return {tensor.name: _type(tensor) for tensor in found if tensor is not None}


def _name(item: tuple[str, object]) -> str:
    return item[0]


def _source(tensor: Tensor) -> bytes:
    return f"{tensor.kind} {_type(tensor)}".encode()


def _type_name(dtype: int) -> str:
    name = onnx.TensorProto.DataType.Name(dtype) if dtype else "other"
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(name, name.lower())


def _type(tensor: Tensor) -> str:
    return f"{_type_name(tensor.dtype)}[{','.join(map(str, tensor.shape))}]"
