"""Graph → :class:`Session`: what a plain session does with the graph, as flat arrays."""

from __future__ import annotations

import numpy as np

from memplan.ir.graph import Graph, Node
from memplan.ops.memory import semantics
from memplan.planning.encode_problem import graph_arrays
from memplan.simulate.body_memory import looped_bytes
from memplan.simulate.run_order import edges
from memplan.simulate.session import SessionKind
from memplan.simulate.timeline import bodies_of, node_workspace
from memplan.solver.pins import Session
from memplan.solver.problem import NONE

SIZE_BYTES = 8
"""What the result of ``Size`` takes, which is what a pin is."""


def plain_session(graph: Graph, kind: SessionKind) -> Session:
    """Encode a graph in file order, without pins.

    Args:
        graph: ``static`` tells of every tensor whether the runtime knows its dimensions.
        kind: a default session; its provider decides what kernels share.
    """
    bodies = bodies_of(graph, kind)
    workspace, _ = node_workspace(graph, kind, bodies)
    inside = np.zeros(len(graph.nodes), np.int64)
    for node, nbytes in bodies.nbytes.items():
        inside[node] = nbytes
    looped = np.zeros(len(graph.nodes), np.int64)
    for node, nbytes in looped_bytes(graph).items():
        looped[node] = nbytes
    arrays = graph_arrays(
        graph, semantics(kind.provider), [0.0] * len(graph.nodes), workspace, inside
    )
    incoming, outgoing = edges(graph)
    start = np.zeros(len(graph.nodes) + 1, np.int64)
    np.cumsum([len(producers) for producers in incoming], out=start[1:])
    flat = [producer for producers in incoming for producer in sorted(producers)]
    pin_of = np.asarray([_pin_of(graph, node) for node in graph.nodes], dtype=np.int64)
    return Session(
        arrays=arrays,
        edge_start=start,
        edges=np.asarray(flat, dtype=np.int64),
        leaf=np.asarray([not readers for readers in outgoing], dtype=np.bool_),
        readers=np.asarray([len(tensor.readers) for tensor in graph.tensors], dtype=np.int64),
        reusable=np.asarray([bool(tensor.shape) for tensor in graph.tensors], dtype=np.bool_),
        pin_of=pin_of,
        looped=looped,
        pin_bytes=np.full(len(graph.nodes), SIZE_BYTES, np.int64),
    )


def _pin_of(graph: Graph, node: Node) -> int:
    """The output that a pin would read: one that nobody else reads, as it is freed then."""
    candidates = [t for t in node.writes if graph.tensors[t].counted]
    unread = [
        t for t in candidates if not graph.tensors[t].readers and not graph.tensors[t].is_output
    ]
    return next(iter((*unread, *candidates)), NONE)


def seen_as(session: Session, graph: Graph, visible: frozenset[str]) -> Session:
    """The session if the runtime knows the dimensions of the tensors ``visible`` alone."""
    numbers: dict[tuple[tuple[int | str, ...], int], int] = {}
    alike = [
        numbers.setdefault((t.seen, t.nbytes), len(numbers))
        if t.name in visible
        else len(graph.tensors) + t.id
        for t in graph.tensors
    ]
    arrays = session.arrays._replace(alike=np.asarray(alike, dtype=np.int64))
    return session._replace(arrays=arrays)
