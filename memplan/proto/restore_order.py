"""Bring an optimized model back into the order of the model that it came from, and to its metadata.

ONNX Runtime saves an optimized graph in its own default order, which runs weight gradients last
and so keeps every activation alive. The original order is the exporter's, and near ideal. It also
states shapes of outputs, so that a seal over them no longer holds.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence, Set
from typing import Any

import onnx

from memplan.proto.edit import copied, replace_nodes
from memplan.proto.metadata import get_metadata, set_metadata
from memplan.proto.nodes import reads_of


def restore_order(model: onnx.ModelProto, original: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of ``model`` sorted by where ``original`` computes the same tensors, with what that
    says in memplan's metadata.

    A node that makes a tensor of the original stands at that tensor's place; a node that only
    makes new tensors stands before the first such node that needs it.
    """
    place: dict[str, int] = {}
    for index, node in enumerate(original.graph.node):
        for name in node.output:
            place[name] = index
    result = copied(model)
    _drop_copies(result.graph, {node.name for node in original.graph.node})
    nodes = list(result.graph.node)
    keys = _keys(nodes, place, len(original.graph.node))
    replace_nodes(result.graph, (nodes[k] for k in sorted_nodes(nodes, keys)))
    set_metadata(result, get_metadata(original))
    return result


def _drop_copies(graph: onnx.GraphProto, own: Set[str]) -> None:
    """Remove the copies between a GPU and the host that the session has put in beside ``own``
    nodes: any session of the result puts in its own."""
    ends = {value.name for value in graph.output}
    known: dict[str, str] = {}
    kept = []
    for node in graph.node:
        if not node.op_type.startswith("Memcpy") or node.domain or node.name in own:
            kept.append(node)
            continue
        source, made = node.input[0], node.output[0]
        known |= {source: made} if made in ends else {made: source}
    if len(kept) == len(graph.node):
        return
    for node in kept:
        for names in (node.input, node.output):
            for slot, name in enumerate(names):
                while name in known:
                    name = known[name]
                names[slot] = name
    replace_nodes(graph, kept)


def _keys(nodes: list[onnx.NodeProto], place: dict[str, int], end: int) -> list[float]:
    """The place of every node; new ones just before their first reader."""
    needed: dict[str, float] = {}
    keys = [float(end)] * len(nodes)
    for k in range(len(nodes) - 1, -1, -1):
        known = [place[name] for name in nodes[k].output if name in place]
        wanted = [needed[name] for name in nodes[k].output if name in needed]
        keys[k] = float(max(known)) if known else min(wanted, default=float(end)) - 0.5
        for name in reads_of(nodes[k]):
            needed[name] = min(needed.get(name, keys[k]), keys[k])
    return keys


def sorted_nodes(nodes: Sequence[onnx.NodeProto], keys: Sequence[Any]) -> list[int]:
    """The places of nodes, sorted topologically by Kahn's algorithm with a queue by key; ties by
    present place."""
    producer = {name: k for k, node in enumerate(nodes) for name in node.output if name}
    waiting = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for k, node in enumerate(nodes):
        for source in {producer[name] for name in reads_of(node) if name in producer}:
            waiting[k] += 1
            readers[source].append(k)
    queue = [(keys[k], k) for k, count in enumerate(waiting) if count == 0]
    heapq.heapify(queue)
    order: list[int] = []
    while queue:
        k = heapq.heappop(queue)[1]
        order.append(k)
        for reader in readers[k]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(queue, (keys[reader], reader))
    return order
