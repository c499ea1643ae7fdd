"""The two node orders of ONNX Runtime 1.31.1, reproduced exactly.

Sources: ``onnxruntime/core/graph/graph_viewer.cc`` (priority) and ``graph.cc``
``ReverseDFSFrom`` (default); checked against the runtime on random graphs by the test suite.

Kahn's algorithm with a queue stands in :mod:`memplan.proto.restore_order` too, on purpose: there it
is our choice of an order, here it is the runtime's, and must not follow an edit of ours.
"""

from __future__ import annotations

import heapq

from memplan.ir.graph import Graph
from memplan.simulate.session import SessionKind

_SHAPE_OPS = (":Shape", ":Size")


def execution_order(graph: Graph, session: SessionKind) -> list[int]:
    """Node ids in the order in which the runtime runs them."""
    incoming, outgoing = edges(graph)
    if session.priority_order:
        return _priority_order(graph, incoming, outgoing)
    return _default_order(graph, incoming, outgoing)


def edges(graph: Graph) -> tuple[list[list[int]], list[list[int]]]:
    """Producers per input slot, and consumers per edge, for every node; double edges kept."""
    incoming: list[list[int]] = []
    outgoing: list[list[int]] = [[] for _ in graph.nodes]
    for node in graph.nodes:
        producers = [graph.tensors[t].producer for t in node.reads]
        incoming.append([p for p in producers if p >= 0])
        for producer in incoming[-1]:
            outgoing[producer].append(node.id)
    return incoming, outgoing


def _priority_order(
    graph: Graph, incoming: list[list[int]], outgoing: list[list[int]]
) -> list[int]:
    """Kahn's algorithm with a queue by (Shape and Size first, file index)."""
    waiting = [len(producers) for producers in incoming]
    keys = [(0 if node.key in _SHAPE_OPS else 1, node.id) for node in graph.nodes]
    queue = [keys[i] for i, count in enumerate(waiting) if count == 0]
    heapq.heapify(queue)
    order: list[int] = []
    while queue:
        index = heapq.heappop(queue)[1]
        order.append(index)
        for consumer in outgoing[index]:
            waiting[consumer] -= 1
            if waiting[consumer] == 0:
                heapq.heappush(queue, keys[consumer])
    return order


def _default_order(graph: Graph, incoming: list[list[int]], outgoing: list[list[int]]) -> list[int]:
    """Reverse depth-first post-order: leaves and producers with the highest index first."""
    stack = [(node.id, False) for node in graph.nodes if not outgoing[node.id]]
    seen = [False] * len(graph.nodes)
    order: list[int] = []
    while stack:
        index, leaving = stack.pop()
        if leaving:
            order.append(index)
            continue
        if seen[index]:
            continue
        seen[index] = True
        stack.append((index, True))
        stack.extend((p, False) for p in sorted(incoming[index]) if not seen[p])
    return order
