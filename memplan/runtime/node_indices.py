"""The runtime's node indices, which decide the order of a tuned session. Used in child processes.

Files in ONNX do not hold them; files in ONNX Runtime's own format (a flatbuffer) do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


def outputs_by_index(path: Path) -> tuple[str, ...]:
    """The first output of every node in a ``.ort`` file, graph by graph, by node index."""
    from onnxruntime.tools.ort_format_model.ort_flatbuffers_py.fbs.InferenceSession import (
        InferenceSession,
    )

    session = InferenceSession.GetRootAs(bytearray(path.read_bytes()), 0)
    found: list[str] = []
    _collect(session.Model().Graph(), found)
    return tuple(found)


def _collect(graph: Any, found: list[str]) -> None:
    nodes = [graph.Nodes(position) for position in range(graph.NodesLength())]
    for node in sorted(nodes, key=lambda node: int(node.Index())):
        names = (node.Outputs(slot).decode() for slot in range(node.OutputsLength()))
        found.append(next((name for name in names if name), ""))
        for position in range(node.AttributesLength()):
            body = node.Attributes(position).G()
            if body is not None:
                _collect(body, found)
