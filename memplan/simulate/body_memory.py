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

from memplan.ir.graph import ABSENT, Body, Graph, Node, TensorKind
from memplan.ops.memory import packable
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
        alike = len(set(needs)) < 2
        for body in bodies:
            notes.append(_note(node, body))
            if not (alike and _is_exact(graph, node, body, session)):
                bounds.append(notes[-1])
    return Inside(*first, *later, tuple(notes), tuple(bounds))


def is_fed_tensors(graph: Graph) -> bool:
    """Whether all inputs are tensors. Where a sequence or an optional is fed, the runtime makes no
    memory pattern (``execution_frame.cc``)."""
    return all(t.counted or t.dtype for t in map(graph.tensors.__getitem__, graph.inputs))


def _is_exact(outer: Graph, node: Node, body: Body, session: SessionKind) -> bool:
    """Whether a body is counted as the runtime does.

    Bodies in a body are bounds. So are bodies that read tensors of whose shapes the runtime may
    know more than memplan, and loops that stack or shift what they are given.
    """
    inner = body.graph
    if inner is None or inner.bodies:
        return False
    if not all(outer.tensors[t].static for t in node.captured):
        return False
    if session.patterns and _may_lack_a_pattern(outer, node, inner):
        return False
    if node.op == "Loop":
        states = _layout(node).states
        handed = [k for k, t in enumerate(inner.outputs) if passes_through(inner, t)]
        stay = all(k <= states and not _is_new(node, inner, k) for k in handed)
        return body.trips is not None and stay
    return node.op == "If" or (body.trips is not None and node.op == "Scan")


def _may_lack_a_pattern(outer: Graph, node: Node, body: Graph) -> bool:
    """Whether the runtime may make no memory pattern for a body; it is taken to make one, which is
    never too little.

    A captured constant is gone once every kernel that reads it has packed it (``session_state.cc``,
    ``PrepackConstantInitializedTensors``), and is no tensor that a body could be fed.
    """
    captured = (outer.tensors[t] for t in node.captured)
    weights = {t.name for t in captured if t.kind is TensorKind.INITIALIZER}
    return any(body.tensors[t].name in weights for each in body.nodes for t in packable(each))


def _needs(
    graph: Graph, node: Node, body: Body, session: SessionKind, peaks: Peaks
) -> tuple[_Need, _Need]:
    """What one body takes while the node runs for the first time, and later."""
    if body.graph is None:
        guess = 2 * sum(graph.tensors[t].nbytes for t in (*node.reads, *node.writes))
        beyond = max(0, guess - (0 if node.op == "Scan" else _written_here(graph, node.writes)))
        return (_Need(beyond, beyond, 0),) * 2
    inner = body.graph
    first, later = peaks(inner, session)
    if body.trips != 1:
        first = later  # from its second iteration on
    held = _held(graph, node, body) + (_LOOP_COUNTERS if node.op == "Loop" else 0)
    closing = _kept_at_end(graph, node, body)

    def need(peak: BodyPeak, *, has_block: bool) -> _Need:
        beside = held - _made_by_the_body(graph, node, inner, has_block=has_block)
        return _Need(max(0, peak.tensors + beside), max(0, peak.with_workspace + beside), closing)

    has_block = session.patterns and is_fed_tensors(graph)
    return need(first, has_block=False), need(later, has_block=has_block)


def _made_by_the_body(outer: Graph, node: Node, body: Graph, *, has_block: bool) -> int:
    """Bytes of the node's outputs that count in the body too, and so would count twice.

    ``has_block``: the graph around holds the block of a memory pattern. Then what a Loop makes is
    there twice: where it is made, and its place in the block; for an output of a branch, in the
    block of the graph around that.
    """
    if node.op not in ("If", "Scan"):
        kept = (t for t in node.writes if outer.tensors[t].is_output and outer.parent_op != "If")
        return _written_here(outer, kept if has_block and node.op == "Loop" else node.writes)
    inner = (body.tensors[t] for t in body.outputs)
    pairs = zip(node.outputs, inner, strict=False)
    return _written_here(
        outer, (t for t, made in pairs if t != ABSENT and not written_outside(body, made))
    )


def _written_here(graph: Graph, tensors: Iterable[int]) -> int:
    """Bytes of those that the graph has memory for."""
    found = (graph.tensors[t] for t in tensors)
    return sum(tensor.nbytes for tensor in found if not written_outside(graph, tensor))


def _held(outer: Graph, node: Node, body: Body) -> int:
    """Bytes beside the body while it runs: states, and stacked scan outputs (of a Loop) or
    transposed sequences (of a Scan)."""
    assert body.graph is not None
    trips = body.trips if body.trips is not None else 1
    if node.op == "If":
        return 0
    states = _layout(node).states
    if node.op == "Scan":
        carried = sum(outer.tensors[t].nbytes for t in node.inputs[:states])
        buffers = 2 if body.trips is None else min(max(trips - 1, 0), 2)
        return buffers * carried + _transposed(outer, node, node.inputs, "input")
    if trips < 2 and body.trips is not None:
        return 0
    stacked = sum(body.graph.tensors[t].nbytes for t in body.graph.outputs[1 + states :])
    return _new_bytes(node, body.graph, range(1 + states)) + (trips - 1) * stacked


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
        return _held(outer, node, body) + _transposed(outer, node, node.outputs, "output")
    if node.op != "Loop":
        return 0
    assert body.graph is not None
    states = _layout(node).states
    trips = body.trips if body.trips is not None else 1
    stacked = sum(body.graph.tensors[t].nbytes for t in body.graph.outputs[1 + states :])
    return trips * stacked + _new_bytes(node, body.graph, range(1, 1 + states))


def _new_bytes(node: Node, body: Graph, slots: Iterable[int]) -> int:
    """Bytes of a Loop body's outputs that are made anew in every iteration."""
    return sum(body.tensors[body.outputs[k]].nbytes for k in slots if _is_new(node, body, k))


def _is_new(node: Node, body: Graph, slot: int) -> bool:
    """Whether an output of a Loop's body, the condition first, is another from one iteration to the
    next: not if the same state is handed on, or a tensor from outside."""
    made = body.outputs[slot]
    if not passes_through(body, made):
        return True
    source = body.inputs.index(body.nodes[body.tensors[made].producer].inputs[0])
    return source != slot + 1 and source < len(node.inputs)


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
