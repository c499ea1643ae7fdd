"""Memory inside control-flow nodes (If, Loop, Scan).

Loop follows ONNX Runtime's ``loop.cc``: the body runs as a graph of its own; its state outputs
feed the next iteration while they are replaced; its scan outputs are kept one by one and
concatenated into the node's output at the end, so they are in memory twice for a moment.

Scan follows ``scan_9.cc`` and ``scan_utils.cc``: the node's outputs are there from its start, and
the body writes its slices and last states into them. States go to and fro between two temporary
tensors (one, where there are two steps). A sequence that is read or written along another axis than
the first is transposed as a whole.

If follows ``if.cc``: the node's outputs are there from its start, and the branch writes into them;
but for those whose dimensions the runtime does not know before it runs. They are made where the
branch makes them. Of the branches, the larger one counts.

Where a session has memory patterns, a body has one of its own: from its second time on, in the next
iteration or the next run, it holds that block (:mod:`memplan.simulate.pattern`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from memplan.ir.graph import ABSENT, Body, Graph, Node
from memplan.proto.loop_node import LoopLayout, loop_layout
from memplan.simulate.allocation import passes_through, written_outside
from memplan.simulate.session import SessionKind


@dataclass(frozen=True, slots=True)
class Inside:
    """Extra bytes while a control-flow node runs, by node id, beyond its own outputs.

    ``nbytes`` are tensors inside the body (what the profiler sees); ``closing`` is what is held
    twice for a moment when the node ends, counted as workspace; ``later`` and ``later_closing`` are
    the same in runs after the first. ``bounds`` are the ``assumptions`` for which the figures may
    be too high or too low.
    """

    nbytes: Mapping[int, int]
    closing: Mapping[int, int]
    later: Mapping[int, int]
    later_closing: Mapping[int, int]
    assumptions: tuple[str, ...]
    bounds: tuple[str, ...] = ()


_LOOP_COUNTERS = 8 + 1
"""Bytes of a Loop's iteration number and condition."""


@dataclass(frozen=True, slots=True)
class BodyPeak:
    """Bytes that one run of a body takes at most: its tensors, and with workspace of kernels."""

    tensors: int
    with_workspace: int


Peaks = Callable[[Graph, SessionKind], tuple[BodyPeak, BodyPeak]]


@dataclass(frozen=True, slots=True)
class _Need:
    """Bytes of one body beyond the node's own outputs: the body's tensors, the same with the
    workspace of its kernels, and what is left when the node's outputs are made of it."""

    tensors: int
    with_workspace: int
    closing: int


def body_bytes(graph: Graph, session: SessionKind, peaks: Peaks) -> Inside:
    """Bytes inside every control-flow node of ``graph``.

    Args:
        graph: the graph around.
        session: bodies run under the same session options.
        peaks: simulates a body: its first run, and those after it.
    """
    first: tuple[dict[int, int], dict[int, int]] = ({}, {})
    later: tuple[dict[int, int], dict[int, int]] = ({}, {})
    notes: list[str] = []
    bounds: list[str] = []
    for index, bodies in graph.bodies.items():
        node = graph.nodes[index]
        needs = [_needs(graph, node, body, session, peaks) for body in bodies]
        for run, (tensors, closing) in enumerate((first, later)):
            tensors[index] = max((need[run].tensors for need in needs), default=0)
            above = max((max(n[run].with_workspace, n[run].closing) for n in needs), default=0)
            closing[index] = max(0, above - tensors[index])
        notes.extend(_note(node, body) for body in bodies)
        alike = len(set(needs)) < 2
        bounds.extend(_note(node, body) for body in bodies if not (alike and _is_exact(node, body)))
    return Inside(*first, *later, tuple(notes), tuple(bounds))


def looped_bytes(graph: Graph) -> dict[int, int]:
    """Bytes that a later run of a plain session holds twice while a Loop runs, by node id: the
    body makes its results, and the place they go to is there already, in the memory pattern's
    block."""
    return {
        index: sum(t.nbytes for t in map(graph.tensors.__getitem__, writes) if not t.is_output)
        for index in graph.bodies
        if graph.nodes[index].op == "Loop" and (writes := graph.nodes[index].writes)
    }


def _is_exact(node: Node, body: Body) -> bool:
    """Whether a body is counted as the runtime does: bodies in a body are bounds."""
    if body.graph is None or body.graph.bodies:
        return False
    return node.op == "If" or (body.trips is not None and node.op in ("Loop", "Scan"))


def _needs(
    graph: Graph, node: Node, body: Body, session: SessionKind, peaks: Peaks
) -> tuple[_Need, _Need]:
    """What one body takes while the node runs for the first time, and later."""
    if body.graph is None:
        guess = 2 * sum(graph.tensors[t].nbytes for t in (*node.reads, *node.writes))
        beyond = max(0, guess - (0 if node.op == "Scan" else _bytes(graph, node.writes)))
        return (_Need(beyond, beyond, 0),) * 2
    first, later = peaks(body.graph, session)
    if body.trips != 1:
        first = later  # from its second iteration on
    return _need(graph, node, body, body.graph, first), _need(graph, node, body, body.graph, later)


def _need(outer: Graph, node: Node, body: Body, inner: Graph, peak: BodyPeak) -> _Need:
    carried, stacked = _held(outer, node, body)
    beside = carried + stacked + (_LOOP_COUNTERS if node.op == "Loop" else 0)
    own = _made_by_the_body(outer, node, inner)
    return _Need(
        max(0, peak.tensors + beside - own),
        max(0, peak.with_workspace + beside - own),
        _kept_at_end(outer, node, body),
    )


def _made_by_the_body(outer: Graph, node: Node, body: Graph) -> int:
    """Bytes of the node's outputs that count in the body too, and so would count twice."""
    if node.op not in ("If", "Scan"):
        return _bytes(outer, node.writes)
    inner = (body.tensors[t] for t in body.outputs)
    pairs = zip(node.outputs, inner, strict=False)
    return _bytes(
        outer, (t for t, made in pairs if t != ABSENT and not written_outside(body, made))
    )


def _bytes(graph: Graph, tensors: Iterable[int]) -> int:
    return sum(graph.tensors[t].nbytes for t in tensors)


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
    if body.graph is None:
        return (
            f"{node.op} '{node.name}': shapes inside '{body.attribute}' are not known; "
            f"taken as twice its inputs and outputs"
        )
    if body.trips is None:
        return (
            f"{node.op} '{node.name}': its number of iterations is decided by data; "
            "stacked outputs are counted for one iteration inside"
        )
    sources = {"If": "if.cc", "Loop": "loop.cc", "Scan": "scan_utils.cc"}
    how = f"as ONNX Runtime's {sources[node.op]} does" if node.op in sources else "conservatively"
    times = f" × {body.trips}" if node.op != "If" else ""
    return f"{node.op} '{node.name}': body '{body.attribute}'{times} counted {how}"
