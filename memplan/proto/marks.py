"""Checkpoints that authors mark in the file: ``metadata_props`` of nodes or values.

The key is ``memplan.checkpoint``, the value ``true`` or ``1``. The mark of a node speaks of all its
outputs. ONNX Runtime's optimizer drops all such metadata, so marks are carried over by name.
"""

from __future__ import annotations

import onnx

KEY = "memplan.checkpoint"
_YES = frozenset({"1", "true"})


def marked_names(graph: onnx.GraphProto) -> list[str]:
    """Names of the marked tensors, in order of the nodes that make them."""
    values = {value.name for value in (*graph.value_info, *graph.output) if _is_marked(value)}
    return [
        name
        for node in graph.node
        for name in node.output
        if name and (name in values or _is_marked(node))
    ]


def carry_marks(source: onnx.GraphProto, target: onnx.GraphProto) -> list[str]:
    """Mark in ``target`` what is marked in ``source``; names that ``target`` does not make."""
    wanted = dict.fromkeys(marked_names(source))
    stated = {value.name: value for value in (*source.value_info, *source.output)}
    known = {value.name: value for value in (*target.value_info, *target.output)}
    for node in target.node:
        made = [name for name in node.output if name]
        hits = [name for name in made if name in wanted]
        for name in hits:
            del wanted[name]
        if len(hits) < len(made) and all(name in known or name in stated for name in hits):
            for name in hits:
                if name not in known:
                    target.value_info.add().CopyFrom(stated[name])
                    known[name] = target.value_info[-1]
                if not _is_marked(known[name]):
                    known[name].metadata_props.add(key=KEY, value="true")
        elif hits:
            node.metadata_props.add(key=KEY, value="true")
    return list(wanted)


def _is_marked(proto: onnx.NodeProto | onnx.ValueInfoProto) -> bool:
    return any(
        item.key == KEY and item.value.strip().lower() in _YES for item in proto.metadata_props
    )
