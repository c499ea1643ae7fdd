"""What memplan writes into a model's ``metadata_props``, and reads back."""

from __future__ import annotations

import json
from collections.abc import Mapping

import onnx

PREFIX = "memplan."
FORWARD_KEY = "memplan.forward"
"""On a node of the backward pass: the name of the forward node whose gradient it belongs to."""


def set_metadata(model: onnx.ModelProto, values: Mapping[str, object]) -> None:
    """Store ``values`` as JSON under ``memplan.<key>``, replacing earlier ones."""
    kept = [item for item in model.metadata_props if not item.key.startswith(PREFIX)]
    copies = [(item.key, item.value) for item in kept]
    del model.metadata_props[:]
    for key, value in copies:
        model.metadata_props.add(key=key, value=value)
    for key, value in values.items():
        model.metadata_props.add(key=PREFIX + key, value=json.dumps(value, sort_keys=True))


def get_metadata(model: onnx.ModelProto) -> dict[str, object]:
    """The values that :func:`set_metadata` stored; an unreadable one is left out."""
    found: dict[str, object] = {}
    for item in model.metadata_props:
        if item.key.startswith(PREFIX):
            try:
                found[item.key.removeprefix(PREFIX)] = json.loads(item.value)
            except json.JSONDecodeError:
                continue
    return found


def node_metadata(node: onnx.NodeProto) -> dict[str, str]:
    """A node's ``metadata_props`` as a dictionary."""
    return {item.key: item.value for item in node.metadata_props}
