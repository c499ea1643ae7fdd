"""The default order of ONNX Runtime: depth first from the nodes that nobody reads.

``Graph::ReverseDFSFrom`` in onnxruntime/core/graph/graph.cc. The simulator finds the same order by
code of its own (:mod:`memplan.simulate.run_order`): one is the other's oracle, and neither may
import the other.
"""

from __future__ import annotations

import numpy as np

from memplan.solver.jit import compiled, leaf
from memplan.solver.order.local import settle
from memplan.solver.problem import Flags, Ints, Problem


@leaf
def visit(
    root: int, edge_start: Ints, edges: Ints, stack: Ints, seen: Flags, order: Ints, length: int
) -> int:
    """Append ``root`` to ``order``, behind all that it waits for; the new length.

    ``edges`` (CSR) are the nodes whose results each node reads, ascending: the last is visited
    first. ``stack`` has room for all nodes and edges and one more; a node that is left stands in
    it as ``-node - 1``.
    """
    stack[0] = root
    height = 1
    while height > 0:
        height -= 1
        node = stack[height]
        if node < 0:
            order[length] = -node - 1
            length += 1
            continue
        if seen[node]:
            continue
        seen[node] = True
        stack[height] = -node - 1
        height += 1
        for k in range(edge_start[node], edge_start[node + 1]):
            if not seen[edges[k]]:
                stack[height] = edges[k]
                height += 1
    return length


@leaf
def mark_read(edges: Ints, read: Flags) -> None:
    """Mark the nodes whose results somebody reads (``read``: all false)."""
    for k in range(len(edges)):
        read[edges[k]] = True


@compiled
def default_order(edge_start: Ints, edges: Ints) -> Ints:
    """All nodes, depth first from those that nobody reads, the last of these first."""
    nodes = len(edge_start) - 1
    stack = np.zeros(nodes + len(edges) + 1, np.int64)
    seen, read = np.zeros(nodes, np.bool_), np.zeros(nodes, np.bool_)
    order = np.zeros(nodes, np.int64)
    mark_read(edges, read)
    length = 0 * nodes
    for node in range(nodes - 1, -1, -1):
        if not read[node]:
            length = visit(node, edge_start, edges, stack, seen, order, length)
    return order


def depth_first(problem: Problem) -> Ints:
    """The nodes of ``problem.order`` as ONNX Runtime orders them by default.

    Only what is needed next is made, which suits graphs whose outputs are not read on: the updates
    of an optimizer. Where nodes that must stay would change places, the order is returned as it is.
    """
    starts, edges = _sources(problem)
    found = settle(problem.arrays, problem.order[default_order(starts, edges)])
    stay = ~problem.movable
    kept = np.array_equal(found[stay[found]], problem.order[stay[problem.order]])
    return found if kept else problem.order


def _sources(problem: Problem) -> tuple[Ints, Ints]:
    """Per position of ``problem.order`` the positions whose results it reads, ascending (CSR)."""
    arrays = problem.arrays
    maker: dict[int, int] = {}
    starts, edges = [0], list[int]()
    for position, node in enumerate(problem.order.tolist()):
        reads = arrays.reads[arrays.read_start[node] : arrays.read_start[node + 1]].tolist()
        edges += sorted({maker[t] for t in reads if t in maker})
        starts.append(len(edges))
        for t in arrays.writes[arrays.write_start[node] : arrays.write_start[node + 1]].tolist():
            maker[t] = position
    return np.asarray(starts, dtype=np.int64), np.asarray(edges, dtype=np.int64)
