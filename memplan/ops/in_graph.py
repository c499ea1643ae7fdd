"""Nodes of a graph as the rules of the operator book look at them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from memplan.ir.graph import ABSENT, Graph, Node
from memplan.ops.instance import Instance

Array = npt.NDArray[np.generic]


def in_graph(
    graph: Graph, node: Node, *, values: Mapping[str, Array] | None = None, threads: int = 1
) -> Instance:
    """A node as its rules look at it.

    Args:
        graph: that it is a node of.
        node: the node.
        values: contents of small constants by name.
        threads: of the session.
    """

    def contents(slot: int) -> list[int] | None:
        value = (values or {}).get(graph.tensors[node.inputs[slot]].name)
        return None if value is None else [int(v) for v in np.asarray(value).reshape(-1)]

    inputs = [graph.tensors[t] if t != ABSENT else None for t in node.inputs]
    outputs = [graph.tensors[t] if t != ABSENT else None for t in node.outputs]
    return Instance(node.attributes, inputs, outputs, graph.opset, contents, max(1, threads))
