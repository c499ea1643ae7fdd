"""What the schema of an operator says of a call in a graph: what it writes to, whether its results
may be views, whether it draws random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from memplan.pytorch.torch_internals import OPERATOR


def written_slots(node: Node) -> list[int | str]:
    """The tensors that a call writes to, by place or keyword; without those in lists."""
    return [slot for slot, given in _written(node) if isinstance(given, Node)]


def written_to(node: Node) -> tuple[Node, ...]:
    """All tensors that a call writes to."""
    flat = [part for _, each in _written(node) for part in _parts(each)]
    return tuple(each for each in flat if isinstance(each, Node))


def _written(node: Node) -> list[tuple[int | str, Any]]:
    """The arguments that a call writes to: place or keyword, and what it is given."""
    if not writes(node):
        return []
    given: dict[int | str, Any] = {**dict(enumerate(node.args)), **node.kwargs}
    slots = [
        place if place < len(node.args) else described.name
        for place, described in enumerate(node.target._schema.arguments)
        if described.alias_info is not None and described.alias_info.is_write
    ]
    return [(slot, given.get(slot)) for slot in slots]


def _parts(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else (value,)


def writes(node: Node) -> bool:
    """Whether a call writes to one of its arguments."""
    return isinstance(node.target, OPERATOR) and node.target._schema.is_mutable


def may_be_view(node: Node) -> bool:
    """Whether a result may share the storage of an argument."""
    return isinstance(node.target, OPERATOR) and any(
        item.alias_info is not None for item in node.target._schema.returns
    )


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
