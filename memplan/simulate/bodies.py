"""Memory inside control-flow nodes (If, Loop, Scan).

Loop follows ONNX Runtime's ``loop.cc``: the body runs as a graph of its own; its state outputs
feed the next iteration while they are replaced; its scan outputs are kept one by one and
concatenated into the node's output at the end, so they are in memory twice for a moment.

Scan follows ``scan_9.cc`` and ``scan_utils.cc``: the node's outputs are there from its start, and
the body writes its slices and last states into them. States go to and fro between two temporary
tensors (one, where there are two steps). A sequence that is read or written along another axis than
the first is transposed as a whole.

If is counted conservatively: the largest body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from memplan.ir.graph import ABSENT, Body, Graph, Node
from memplan.proto.loop_node import LoopLayout, loop_layout
from memplan.simulate.allocation import passes_through
from memplan.simulate.session import SessionKind


@dataclass(frozen=True, slots=True)
class Inside:
    """Extra bytes while a control-flow node runs, by node id, beyond its own outputs.

    ``nbytes`` are tensors inside the body (what the profiler sees); ``closing`` is what is held
    twice for a moment when the node ends, counted as workspace.
    """

    nbytes: Mapping[int, int]
    closing: Mapping[int, int]
    assumptions: tuple[str, ...]


_LOOP_COUNTERS = 8 + 1
"""Bytes of a Loop's iteration number and condition."""

Peak = Callable[[Graph, SessionKind], tuple[int, int]]


def body_bytes(graph: Graph, session: SessionKind, peak: Peak) -> Inside:
    """Bytes inside every control-flow node of ``graph``.

    Args:
        graph: the graph around.
        session: bodies run under the same session options.
        peak: simulates a body: (dynamic peak, the same with workspace).
    """
    nbytes: dict[int, int] = {}
    closing: dict[int, int] = {}
    notes: list[str] = []
    for index, bodies in graph.bodies.items():
        node = graph.nodes[index]
        own = 0 if node.op == "Scan" else sum(graph.tensors[t].nbytes for t in node.writes)
        inner, with_workspace, kept = 0, 0, 0
        for body in bodies:
            if body.graph is None:
                notes.append(
                    f"{node.op} '{node.name}': shapes inside '{body.attribute}' are not known; "
                    f"taken as twice its inputs and outputs"
                )
                guess = 2 * sum(graph.tensors[t].nbytes for t in (*node.reads, *node.writes))
                inner, with_workspace = max(inner, guess), max(with_workspace, guess)
                continue
            if node.op == "Scan":
                own = 0  # its outputs are there from the start, and the body writes into them
            carried, stacked = _held(graph, node, body)
            dynamic, total = peak(body.graph, session)
            counters = _LOOP_COUNTERS if node.op == "Loop" else 0
            inner = max(inner, dynamic + carried + stacked + counters)
            with_workspace = max(with_workspace, total + carried + stacked + counters)
            kept = max(kept, _kept_at_end(graph, node, body))
            notes.append(_note(node, body))
        nbytes[index] = max(0, inner - own)
        closing[index] = max(0, max(with_workspace - own, kept) - nbytes[index])
    return Inside(nbytes, closing, tuple(notes))


def _held(outer: Graph, node: Node, body: Body) -> tuple[int, int]:
    """Bytes beside the body while it runs: states, and stacked scan outputs (of a Loop) or
    transposed sequences (of a Scan)."""
    assert body.graph is not None
    trips = body.trips if body.trips is not None else 1
    if node.op == "If":
        return 0, 0
    if node.op == "Scan":
        states = sum(outer.tensors[t].nbytes for t in node.inputs[: _layout(node).states])
        buffers = 2 if body.trips is None else min(max(trips - 1, 0), 2)
        return buffers * states, _transposed(outer, node, node.inputs, "input")
    if trips < 2 and body.trips is not None:
        return 0, 0
    outputs, count = body.graph.outputs[1:], _layout(node).states
    carried = _made_bytes(body.graph, (*outputs[:count], body.graph.outputs[0]))  # the condition
    stacked = (trips - 1) * sum(body.graph.tensors[t].nbytes for t in outputs[count:])
    return carried, stacked


def _transposed(outer: Graph, node: Node, tensors: tuple[int, ...], kind: str) -> int:
    """Scan only: bytes of the sequences whose axis of steps is not the first."""
    layout = _layout(node)
    axis = layout.input_axis if kind == "input" else layout.output_axis
    return sum(
        outer.tensors[t].nbytes
        for slot, t in enumerate(tensors[layout.states :])
        if t != ABSENT and axis(slot)
    )


def _kept_at_end(outer: Graph, node: Node, body: Body) -> int:
    """What is still there while the node's outputs are made of it: states and scan outputs of a
    Loop; what a Scan transposes into its outputs."""
    if node.op == "Scan":
        return sum(_held(outer, node, body)) + _transposed(outer, node, node.outputs, "output")
    if node.op != "Loop":
        return 0
    assert body.graph is not None
    outputs = body.graph.outputs[1:]
    states = _layout(node).states
    trips = body.trips if body.trips is not None else 1
    stacked = trips * sum(body.graph.tensors[t].nbytes for t in outputs[states:])
    return stacked + _made_bytes(body.graph, outputs[:states])


def _made_bytes(graph: Graph, tensors: tuple[int, ...]) -> int:
    """Bytes of body outputs that are made inside, not handed through."""
    return sum(graph.tensors[t].nbytes for t in tensors if not passes_through(graph, t))


def _layout(node: Node) -> LoopLayout:
    return loop_layout(node.op, node.attributes, len(node.inputs))


def _note(node: Node, body: Body) -> str:
    if body.trips is None:
        return (
            f"{node.op} '{node.name}': its number of iterations is decided by data; "
            "stacked outputs are counted for one iteration inside"
        )
    sources = {"Loop": "loop.cc", "Scan": "scan_utils.cc"}
    how = f"as ONNX Runtime's {sources[node.op]} does" if node.op in sources else "conservatively"
    times = f" × {body.trips}" if node.op != "If" else ""
    return f"{node.op} '{node.name}': body '{body.attribute}'{times} counted {how}"
