"""The node orders of ONNX Runtime 1.31.1, reproduced exactly.

Sources: ``onnxruntime/core/graph/graph_viewer.cc`` (priority), ``graph.cc`` ``ReverseDFSFrom``
(default) and ``execution_provider_plan`` (one stream per device); checked against the runtime on
random graphs by the test suite. Kahn's algorithm with a queue stands in
:mod:`memplan.proto.restore_order` too, on purpose: there it is our choice of an order, here it is
the runtime's, and must not follow an edit of ours.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from memplan.ir.graph import Graph
from memplan.ops.book import SHAPE_READERS
from memplan.simulate.devices import Devices
from memplan.simulate.session import SessionKind, session_kind


def execution_order(graph: Graph, session: SessionKind) -> list[int]:
    """Node ids in the order in which the runtime runs them."""
    listed = session.as_listed or (session.priority_order and _ready_as_listed(graph))
    if listed:
        return list(range(len(graph.nodes)))
    incoming, outgoing = edges(graph)
    if session.priority_order:
        return _priority_order(graph, incoming, outgoing)
    return _default_order(incoming, outgoing, range(len(graph.nodes)))


def default_order(graph: Graph, indices: Sequence[int]) -> list[int]:
    """Node ids in the order of a plain session whose nodes have other indices than their ids."""
    incoming, outgoing = edges(graph)
    return _default_order(incoming, outgoing, indices)


def tuned_order(graph: Graph) -> list[int]:
    """The same for a tuned session."""
    return execution_order(graph, session_kind("tuned"))


def _ready_as_listed(graph: Graph) -> bool:
    """Whether the priority order is that of the list: nodes are sorted and none goes first, so that
    the lowest one that has not run is always ready."""
    made_by = [tensor.producer for tensor in graph.tensors]
    return not any(
        node.key in SHAPE_READERS or any(made_by[t] >= node.id for t in node.reads)
        for node in graph.nodes
    )


def edges(graph: Graph) -> tuple[list[list[int]], list[list[int]]]:
    """Producers per input slot, and consumers per edge, for every node; double edges kept."""
    incoming: list[list[int]] = []
    outgoing: list[list[int]] = [[] for _ in graph.nodes]
    made_by = [tensor.producer for tensor in graph.tensors]
    for node in graph.nodes:
        producers = [made_by[t] for t in node.reads if made_by[t] >= 0]
        incoming.append(producers)
        for producer in producers:
            outgoing[producer].append(node.id)
    return incoming, outgoing


def _priority_order(
    graph: Graph, incoming: list[list[int]], outgoing: list[list[int]]
) -> list[int]:
    """Kahn's algorithm with a queue by (Shape and Size first, file index)."""
    waiting = [len(producers) for producers in incoming]
    keys = [(0 if node.key in SHAPE_READERS else 1, node.id) for node in graph.nodes]
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


def _default_order(
    incoming: list[list[int]], outgoing: list[list[int]], indices: Sequence[int]
) -> list[int]:
    """Reverse depth-first post-order: leaves and producers with the highest index first."""
    leaves = sorted((n for n, below in enumerate(outgoing) if not below), key=indices.__getitem__)
    stack = [(node, False) for node in leaves]
    seen = [False] * len(outgoing)
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
        below = sorted(incoming[index], key=indices.__getitem__)
        stack.extend((p, False) for p in below if not seen[p])
    return order


def placed_order(graph: Graph, session: SessionKind, devices: Devices) -> list[int]:
    """Node ids in the order in which a session on a GPU runs them."""
    return _streams_order(graph, execution_order(graph, session), devices)


def _streams_order(graph: Graph, order: list[int], devices: Devices) -> list[int]:
    """``order`` as one thread runs it with one stream per device.

    A stream runs until a node needs what another stream has not made yet; whoever makes it runs the
    waiting stream on at once (``execution_provider_plan``'s barriers and triggers).
    """
    if not devices.host_nodes:
        return order
    streams: dict[bool, list[int]] = {}
    for node in order:
        streams.setdefault(node in devices.host_nodes, []).append(node)
    position = dict.fromkeys(streams, 0)
    waits: set[bool] = set()
    done: set[int] = set()
    needs = {
        node.id: {p for t in node.reads if (p := graph.tensors[t].producer) >= 0}
        for node in graph.nodes
    }
    result: list[int] = []
    for first in streams:
        # A stack of streams instead of recursion: the last one on it runs.
        stack = [first]
        while stack:
            stream = stack[-1]
            place = position[stream]
            if place == len(streams[stream]) or not needs[streams[stream][place]] <= done:
                waits.add(stack.pop())
                continue
            node = streams[stream][place]
            position[stream] += 1
            done.add(node)
            result.append(node)
            # Only a stream that has come to its barrier is run on; others find it open.
            other = not stream
            if other in waits and _feeds(graph, node, devices):
                waits.discard(other)
                stack.append(other)
    return result


def _feeds(graph: Graph, node: int, devices: Devices) -> bool:
    """Whether a node of the other stream reads something that ``node`` makes."""
    here = node in devices.host_nodes
    return any(
        (reader in devices.host_nodes) != here
        for tensor in graph.nodes[node].writes
        for reader in graph.tensors[tensor].readers
    )
