"""Copies between host and device in a file that a CUDA session saved.

They are operators of the runtime alone, which no shape inference knows; a copy is typed like an
Identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx

from memplan.ir.graph import Graph

COPY_OPS = ("MemcpyFromHost", "MemcpyToHost")


def hide_copies(model: onnx.ModelProto) -> dict[str, str]:
    """Turn the copies of ``model`` into Identity nodes: node name -> what it was."""
    found = {}
    for node in model.graph.node:
        if node.op_type in COPY_OPS and not node.domain:
            found[node.name] = node.op_type
            node.op_type = "Identity"
    return found


def show_copies(graph: Graph, copies: Mapping[str, str]) -> Graph:
    """The graph of such a model with its copies again."""
    if not copies:
        return graph
    nodes = (replace(node, op=copies.get(node.name, node.op)) for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))
