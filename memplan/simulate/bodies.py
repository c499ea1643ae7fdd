"""Memory inside control-flow nodes (If, Loop, Scan).

Loop follows ONNX Runtime's ``loop.cc``: the body runs as a graph of its own; its state outputs
feed the next iteration while they are replaced; its scan outputs are kept one by one and
concatenated into the node's output at the end, so they are in memory twice for a moment. Scan
follows ``scan_utils.cc``: its outputs are allocated in front, and the body writes its slices into
them; states alternate between two buffers until the last step, which writes the final ones; what is
not scanned along axis 0 is transposed beside. If is counted conservatively: the larger branch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from memplan.graph.types import ABSENT, Body, Graph, Node
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
                carried, stacked = _scan_buffers(node, body, body.graph), _transposed(graph, node)
                dynamic, total = peak(_writing_outside(body.graph), session)
            else:
                carried, stacked = _held(node, body, body.graph)
                dynamic, total = peak(body.graph, session)
            counters = _LOOP_COUNTERS if node.op == "Loop" else 0
            inner = max(inner, dynamic + carried + stacked + counters)
            with_workspace = max(with_workspace, total + carried + stacked + counters)
            kept = max(kept, _kept_at_end(node, body, body.graph))
            notes.append(_note(node, body))
        nbytes[index] = max(0, inner - own)
        closing[index] = max(0, max(with_workspace - own, kept) - nbytes[index])
    return Inside(nbytes, closing, tuple(notes))


def _held(node: Node, body: Body, graph: Graph) -> tuple[int, int]:
    """Bytes that the iterations before the last one left: states, and stacked scan outputs."""
    if node.op == "If":
        return 0, 0
    outputs = graph.outputs[1:]
    states = _state_count(node)
    trips = body.trips if body.trips is not None else 1
    if trips < 2 and body.trips is not None:
        return 0, 0
    carried = _made_bytes(graph, outputs[:states])
    carried += _made_bytes(graph, graph.outputs[:1])  # the condition
    stacked = (trips - 1) * sum(graph.tensors[t].nbytes for t in outputs[states:])
    return carried, stacked


def _scan_buffers(node: Node, body: Body, graph: Graph) -> int:
    """The buffers between which the states of a Scan alternate: none for one step, one for two."""
    states = sum(graph.tensors[t].nbytes for t in graph.outputs[: _state_count(node)])
    return states * min(2, max(0, (body.trips if body.trips is not None else 3) - 1))


def _transposed(graph: Graph, node: Node) -> int:
    """Copies of a Scan's sequences that do not have their steps along axis 0."""
    states = _state_count(node)
    total = 0
    for name, tensors in (
        ("scan_input_axes", node.inputs[states:]), ("scan_output_axes", node.outputs[states:]),
    ):  # fmt: skip
        axes = node.attributes.get(name) or []
        assert isinstance(axes, list)
        for axis, tensor in zip(axes, tensors, strict=False):
            if axis and tensor != ABSENT:
                total += graph.tensors[tensor].nbytes
    return total


def _writing_outside(graph: Graph) -> Graph:
    """A body whose outputs are slices of buffers that the node around it has allocated."""
    outputs = set(graph.outputs)
    return replace(
        graph,
        tensors=tuple(
            replace(tensor, nbytes=0) if tensor.id in outputs else tensor
            for tensor in graph.tensors
        ),
    )


def _kept_at_end(node: Node, body: Body, graph: Graph) -> int:
    """Loop only: states and scan outputs, still there while they are copied to the outputs."""
    if node.op != "Loop":
        return 0
    outputs = graph.outputs[1:]
    states = _state_count(node)
    trips = body.trips if body.trips is not None else 1
    stacked = trips * sum(graph.tensors[t].nbytes for t in outputs[states:])
    return stacked + _made_bytes(graph, outputs[:states])


def _made_bytes(graph: Graph, tensors: tuple[int, ...]) -> int:
    """Bytes of body outputs that are made inside, not handed through."""
    return sum(graph.tensors[t].nbytes for t in tensors if not passes_through(graph, t))


def _state_count(node: Node) -> int:
    if node.op == "Loop":
        return sum(1 for t in node.inputs[2:] if t != ABSENT)
    sequences = node.attributes.get("num_scan_inputs", 0)
    assert isinstance(sequences, int)
    return len(node.inputs) - sequences


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
