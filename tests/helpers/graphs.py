"""Small graphs for tests, written as ONNX text (``onnx.parser``), and the random ones."""

from pathlib import Path
from random import Random
from typing import Any

import onnx
import onnx.parser

from memplan.ir.graph import Graph, Node, Tensor
from memplan.shapes.prepare import prepare
from memplan.simulate.opened import OpenModel, opened
from memplan.simulate.session import SessionKind, session_kind
from memplan.simulate.timeline import Timeline, simulate

TUNED = session_kind("tuned")
PLAIN = SessionKind("default", "cpu", priority_order=False, reuse=True)
"""With the file's own nodes, none fused: to run with optimization switched off."""
REUSING = SessionKind("file order with reuse", "cpu", priority_order=True, reuse=True)
HEADER = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>\n'
KIB = 1024
"""``float[256]`` is 1 KiB: most hand-made graphs count in these."""


def parse(text: str) -> onnx.ModelProto:
    """The model in ``text``: a graph as ``onnx.parser`` reads it, with or without a header."""
    return onnx.parser.parse_model(text if text.lstrip().startswith("<") else HEADER + text)


def open_text(
    text: str | onnx.ModelProto, loss: str | None = None, dims: dict[str, int] | None = None
) -> OpenModel:
    """The model, prepared, with its graph, phases and modules."""
    model = parse(text) if isinstance(text, str) else text
    return opened(prepare(model, Path("test.onnx"), dims or {}), loss)


def on_x(nodes: str, outputs: str = "float[256] y", inputs: str = "float[256] x") -> str:
    """A graph that makes y of x, 1 KiB each, and constants for its nodes."""
    zeros = ", ".join(["0"] * 256)
    return f"""g ({inputs}) => ({outputs})
    <int64[2] square = {{16, 16}}, int64[1] flat = {{256}}, int64[1] first = {{0}},
     int64[1] wide = {{2560}}, float[256] w = {{{zeros}}}, int64[256] places = {{{zeros}}},
     int64[0] none = {{}}> {{ {nodes} }}"""


def graph_of(text: str) -> Graph:
    """The graph in ``text``."""
    return open_text(text).graph


def timeline_of(text: str, session: SessionKind = TUNED) -> Timeline:
    """The graph in ``text``, simulated."""
    return simulate(graph_of(text), session)


def kib(timeline: Timeline) -> list[float]:
    """Dynamic KiB per step."""
    return [nbytes / KIB for nbytes in timeline.dynamic.tolist()]


def tensor(graph: Graph, name: str) -> Tensor:
    """The tensor of that name, which must be there."""
    found = graph.tensor_named(name)
    assert found is not None, name
    return found


def node(graph: Graph, name: str) -> Node:
    """The node of that name, which must be there."""
    return next(node for node in graph.nodes if node.name == name)


def names(graph: Graph, order: Any) -> list[str]:
    """Node names in ``order`` (node ids)."""
    return [graph.nodes[index].name for index in order]


def random_order(graph: Graph, draw: Random) -> list[int]:
    """A topological order drawn at random; Shape and Size stand right behind their input.

    That is where the runtime puts them, so a file in such an order runs in file order.
    """
    producers = [{graph.tensors[t].producer for t in n.reads} - {-1} for n in graph.nodes]
    left = set(range(len(graph.nodes)))
    order: list[int] = []
    while left:
        ready = sorted(index for index in left if not producers[index] & left)
        eager = [index for index in ready if graph.nodes[index].op in ("Shape", "Size")]
        order.append(eager[0] if eager else draw.choice(ready))
        left.remove(order[-1])
    return order
