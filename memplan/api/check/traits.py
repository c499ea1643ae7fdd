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
from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from memplan.ir.graph import ABSENT, Graph, Node, Tensor, TensorKind

MOST_INPUTS = 12
"""Inputs that a lock lists: a step has few, and a graph with hundreds must not swell it."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What :mod:`memplan.api.check.traits` tells of a graph; ``inputs`` are like
    ``float32[8,128]``."""

    structure: str
    operators: Mapping[str, int]
    types: Mapping[str, int]
    inputs: Mapping[str, str]


def traits_of(graph: Graph, fed: tuple[str, ...]) -> Traits:
    """The traits of a graph of which one step is fed the inputs named ``fed``."""
    computed = (t for t in graph.tensors if t.kind is TensorKind.COMPUTED)
    found = [graph.tensor_named(name) for name in fed[:MOST_INPUTS]]
    return Traits(
        structure=structure(graph),
        operators=_sorted(Counter(_operator(node) for node in graph.nodes)),
        types=_sorted(Counter(_type_name(tensor.dtype) for tensor in computed)),
        inputs={tensor.name: _type(tensor) for tensor in found if tensor is not None},
    )


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


def _name(item: tuple[str, object]) -> str:
    return item[0]


def _source(tensor: Tensor) -> bytes:
    return f"{tensor.kind} {_type(tensor)}".encode()


def _operator(node: Node) -> str:
    return f"{node.domain}:{node.op}" if node.domain else node.op


def _type_name(dtype: int) -> str:
    name = onnx.TensorProto.DataType.Name(dtype) if dtype else "other"
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(name, name.lower())


def _type(tensor: Tensor) -> str:
    return f"{_type_name(tensor.dtype)}[{','.join(map(str, tensor.shape))}]"


def _sorted(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items()))
