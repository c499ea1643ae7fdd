"""Which layer of the model a node belongs to: people think in layers.

Exporters record it in ``metadata_props``; where they do not, parameter names do
(``encoder.layer.3.attn.weight`` → ``encoder.layer.3.attn``), and nodes in between belong to the
module of the parameter used last before them.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache

from memplan.ir.graph import Graph, Phase
from memplan.ir.phases import Phases
from memplan.proto.limits import MOST_TEXT
from memplan.proto.metadata import MODULE_KEY

NO_MODULE = "(no module)"
_DEPTH_AFTER_INDEX = 1


def modules(graph: Graph, phases: Phases) -> tuple[str, ...]:
    """The module of every node by id; :data:`NO_MODULE` where nothing tells."""
    recorded = [recorded_module(metadata) for metadata in graph.metadata]
    owner = {t: _owner(graph.tensors[t].name) for t in phases.parameters}
    current = NO_MODULE
    result: list[str] = []
    for node in graph.nodes:
        named = recorded[node.id]
        if named is None and phases.of[node.id] in (Phase.FORWARD, Phase.LOSS):
            parameter = next((owner[t] for t in node.reads if t in owner), None)
            if parameter is not None:
                current = parameter
                if len(node.reads) == 1:
                    owner.update(dict.fromkeys(node.writes, parameter))  # a transposed weight
            named = current if phases.of[node.id] is Phase.FORWARD else "loss"
        result.append(named or NO_MODULE)
    return tuple(result)


def recorded_module(metadata: Mapping[str, str]) -> str | None:
    """The module that the exporter wrote down, if it names a real one."""
    if MODULE_KEY in metadata:
        return metadata[MODULE_KEY]
    scopes = metadata.get("pkg.torch.onnx.name_scopes")
    if scopes is None or len(scopes) > MOST_TEXT:
        return None
    # The last scope is the operator itself (['', 'mul_3'] names no module), and differs from node
    # to node: what stands before it is read once for all nodes of a module.
    outer, comma, last = scopes.rpartition(",")
    names = _literal(f"{outer}]") if comma and last.strip() != "]" else None
    if names is None:
        names = (_literal(scopes) or ())[:-1]
    inner = [name for name in names if name]
    return inner[-1] if inner else None


@lru_cache(maxsize=4096)
def _literal(text: str) -> tuple[str, ...] | None:
    """A list or tuple that stands in ``text``; None for anything else."""
    try:
        names = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
    return tuple(map(str, names)) if isinstance(names, list | tuple) else None


def _owner(parameter: str) -> str:
    """The module that owns a parameter: its path, cut one level behind the last layer index."""
    parts = parameter.split(".")[:-1] or [parameter]
    last_index = max((k for k, part in enumerate(parts) if part.isdigit()), default=-1)
    if last_index < 0:
        return ".".join(parts)
    return ".".join(parts[: last_index + 1 + _DEPTH_AFTER_INDEX])
