"""Which tensors need a gradient, and which operators on the way have no rule."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx

from memplan.autodiff.emit.gradient_registry import Entry, entry_for
from memplan.errors import ModelError
from memplan.proto.nodes import captured_names
from memplan.shapes.tensor_type import UNKNOWN, TensorType

_LISTED = 3


@dataclass(frozen=True, slots=True)
class Activity:
    """``tensors`` need a gradient: they depend on an x, and a y depends on them.

    ``nodes`` are the indices of the nodes that gradients flow through.
    """

    tensors: frozenset[str]
    nodes: frozenset[int]

    def wanted(self, node: onnx.NodeProto, entry: Entry) -> tuple[bool, ...]:
        """Which inputs of a node need a gradient from it."""
        return tuple(
            name in self.tensors and _has(entry.inputs, slot)
            for slot, name in enumerate(node.input)
        )


def find_activity(
    nodes: Sequence[onnx.NodeProto],
    types: Mapping[str, TensorType],
    ys: Collection[str],
    xs: Collection[str],
) -> Activity:
    """What lies between ``xs`` and ``ys``; integer tensors and zero derivatives end a way.

    An operator without an entry counts as differentiable everywhere.
    """
    below = set(xs)
    candidates: list[int] = []
    for index, node in enumerate(nodes):
        entry = entry_for(node) or Entry()
        if not entry.zero and any(name in below for name in _sources(node, entry)):
            made = _results(node, entry, types)
            below.update(made)
            if made:
                candidates.append(index)
    above = set(ys) & below
    found: set[int] = set()
    for index in reversed(candidates):
        node = nodes[index]
        entry = entry_for(node) or Entry()
        if any(name in above for name in _results(node, entry, types)):
            found.add(index)
            above.update(name for name in _sources(node, entry) if name in below)
    return Activity(frozenset(above), frozenset(found))


def _has(slots: frozenset[int] | None, slot: int) -> bool:
    return slots is None or slot in slots


def _sources(node: onnx.NodeProto, entry: Entry) -> list[str]:
    """The inputs that may need a gradient."""
    named = [name for slot, name in enumerate(node.input) if name and _has(entry.inputs, slot)]
    return named + list(captured_names(node))


def _results(node: onnx.NodeProto, entry: Entry, types: Mapping[str, TensorType]) -> list[str]:
    """The outputs that can bring a gradient in."""
    return [
        name
        for slot, name in enumerate(node.output)
        if name and _has(entry.outputs, slot) and may_flow(types.get(name, UNKNOWN))
    ]


def may_flow(found: TensorType) -> bool:
    """Whether a tensor is, or may turn out to be, a float tensor."""
    return found.is_float or found.dtype == 0


def require_rules(nodes: Sequence[onnx.NodeProto], activity: Activity) -> None:
    """Check that every operator that gradients flow through has a rule.

    Raises:
        ModelError: names every operator without one.
    """
    missing: dict[str, list[str]] = {}
    for index in sorted(activity.nodes):
        node = nodes[index]
        if entry_for(node) is None:
            key = f"{node.domain}:{node.op_type}" if node.domain else node.op_type
            missing.setdefault(key, []).append(node.name)
    if not missing:
        return
    texts = []
    for op, names in sorted(missing.items()):
        more = ", ..." if len(names) > _LISTED else ""
        texts.append(f"{op} ({', '.join(names[:_LISTED])}{more})")
    raise ModelError(
        "no gradient is known for " + "; ".join(texts),
        "take these operators off the path to the loss, or narrow --wrt; docs/how/gradients.md "
        "says how a rule is written",
    )
