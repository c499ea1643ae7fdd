"""Nodes whose first output is, bit for bit and in shape, their first input."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from memplan.ir.graph import ABSENT, Graph, Node
from memplan.ir.graph_facts import Facts
from memplan.ops.book import operator

_STEPS_SLOT = 4  # of Slice, from opset 10 on
_TRAINING_MODE_OPSET = 12  # from here on Dropout has training_mode as its third input


def same_value(facts: Facts, node: Node) -> bool:
    """Whether ``node`` only hands its first input on, and makes nothing else that is used."""
    tensors = facts.graph.tensors
    if not node.inputs or node.inputs[0] == ABSENT or not node.outputs or node.outputs[0] == ABSENT:
        return False
    if any(tensors[t].is_output or tensors[t].readers for t in node.outputs[1:] if t != ABSENT):
        return False
    source, result = tensors[node.inputs[0]], tensors[node.outputs[0]]
    if not source.counted or source.dtype != result.dtype:
        return False
    if node.key in (":Identity", ":Cast"):
        return True
    if operator(node.key).alone:
        return len(node.inputs) == 1
    if operator(node.key).stays:
        return facts.shape_stays(node)
    rule = _RULES.get(node.key)
    return rule is not None and rule(facts, node)


def permutation(graph: Graph, node: Node) -> list[int] | None:
    """The axes of a Transpose, reversed without the attribute; None where it has others than its
    tensor: no session opens such a file."""
    given = node.attributes.get("perm")
    axes = list(range(len(graph.tensors[node.inputs[0]].shape)))
    if not isinstance(given, list):
        return axes[::-1]
    return list(given) if sorted(given) == axes else None


def _transpose(facts: Facts, node: Node) -> bool:
    axes = permutation(facts.graph, node)
    return axes is not None and axes == sorted(axes)


def _slice(facts: Facts, node: Node) -> bool:
    """The whole, forwards: a step of -1 keeps the shape, too."""
    if not facts.shape_stays(node):
        return False
    steps = facts.value(node, _STEPS_SLOT)
    return facts.absent(node, _STEPS_SLOT) or (
        steps is not None and bool(np.all(np.sign(steps.astype(np.int64)) > 0))
    )


def _pad(facts: Facts, node: Node) -> bool:
    """All pads 0: one that cuts and one that adds may make up for each other in the shape."""
    pads = facts.value(node, 1)
    return facts.shape_stays(node) and pads is not None and not np.any(pads)


def _dropout(facts: Facts, node: Node) -> bool:
    """Inference, or a ratio of 0. Random numbers of other nodes do not depend on it."""
    if facts.graph.opset < _TRAINING_MODE_OPSET:
        return True
    training, ratio = facts.value(node, 2), facts.value(node, 1)
    inference = facts.absent(node, 2) or (training is not None and not np.any(training))
    return inference or (ratio is not None and not np.any(ratio))


_RULES: Mapping[str, Callable[[Facts, Node], bool]] = {
    ":Transpose": _transpose,
    ":Slice": _slice,
    ":Pad": _pad,
    ":Dropout": _dropout,
}
