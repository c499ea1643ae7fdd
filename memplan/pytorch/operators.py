"""What the schema of an operator says of a call in a graph: what it writes to, whether it draws
random numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from memplan.pytorch.torch_internals import OPERATOR


def written_to(node: Node) -> tuple[Node, ...]:
    """All tensors that a call writes to."""
    if not writes(node):
        return ()
    given: dict[int | str, Any] = {**dict(enumerate(node.args)), **node.kwargs}
    found = [
        given.get(place if place < len(node.args) else described.name)
        for place, described in enumerate(node.target._schema.arguments)
        if described.alias_info is not None and described.alias_info.is_write
    ]
    flat = [part for each in found for part in (each if isinstance(each, list | tuple) else [each])]
    return tuple(each for each in flat if isinstance(each, Node))


def writes(node: Node) -> bool:
    """Whether a call writes to one of its arguments."""
    return isinstance(node.target, OPERATOR) and node.target._schema.is_mutable


def draws(node: Node) -> bool:
    """Whether a call takes random numbers. Attention and dropout with a rate of 0 take none."""
    target = node.target
    if not isinstance(target, OPERATOR) or torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    for place, described in enumerate(target._schema.arguments):
        if described.name == "dropout_p":
            given = node.args[place] if place < len(node.args) else node.kwargs.get("dropout_p")
            return given not in (None, 0, 0.0)
    return True
