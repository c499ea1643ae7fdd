"""Uses of operators that move elements: views, transposes, gathers, joins."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from memplan.ir.graph import Node
from memplan.passes.chunk.uses import WHOLE, Facts, Use, aligned, int_attribute, rule


@rule(":Reshape", ":Flatten", ":Unsqueeze", ":Squeeze")
def view(facts: Facts, node: Node) -> Iterator[Use]:
    """A range of an axis is a range of another, if as many elements stand before both: [8192, V] in
    chunks of rows is [8, 1024, V] in chunks of batches."""
    source, result = facts.shape(node.inputs[0]), facts.shape(node.outputs[0])
    if node.op == "Squeeze" and not (facts.present(node, 1) or "axes" in node.attributes):
        return  # a chunk of one would lose its axis
    whole = tuple(WHOLE for _ in node.inputs[1:])
    places = {prod(result[:axis]): axis for axis, size in enumerate(result) if size > 1}
    for axis, size in enumerate(source):
        target = places.get(prod(source[:axis]))
        if size > 1 and target is not None:
            yield Use((axis, *whole), (target,), shape_slot=1 if node.op == "Reshape" else -1)


@rule(":Transpose")
def transpose(facts: Facts, node: Node) -> Iterator[Use]:
    """Any axis, where it goes."""
    rank = len(facts.shape(node.inputs[0]))
    given = node.attributes.get("perm")
    perm = given if isinstance(given, list) else list(reversed(range(rank)))
    for target, axis in enumerate(perm):
        yield Use((axis,), (target,))


@rule(":Expand")
def expand(facts: Facts, node: Node) -> Iterator[Use]:
    """Any axis of the result; what is repeated along it is read whole."""
    source, result = facts.shape(node.inputs[0]), facts.shape(node.outputs[0])
    for axis, size in enumerate(result):
        yield Use((aligned(source, len(result), axis, size), WHOLE), (axis,), shape_slot=1)


@rule(":ConstantOfShape")
def constant_of_shape(facts: Facts, node: Node) -> Iterator[Use]:
    """Any axis."""
    for axis in range(len(facts.shape(node.outputs[0]))):
        yield Use((WHOLE,), (axis,), shape_slot=0)


@rule(":Gather")
def gather(facts: Facts, node: Node) -> Iterator[Use]:
    """The axes of the indices, and those of the data that are not indexed."""
    data, indices = (facts.shape(t) for t in node.inputs[:2])
    axis = int_attribute(node, "axis", 0) % max(len(data), 1)
    for own in range(len(indices)):
        yield Use((WHOLE, own), (axis + own,))
    for own in range(len(data)):
        if own != axis:
            yield Use((own, WHOLE), (own if own < axis else own - 1 + len(indices),))


@rule(":GatherElements", ":ScatterElements")
def by_elements(facts: Facts, node: Node) -> Iterator[Use]:
    """The axes that are not indexed, if data and indices are as long there."""
    shapes = [facts.shape(t) for t in node.inputs]
    indexed = int_attribute(node, "axis", 0) % max(len(shapes[0]), 1)
    for axis in range(len(shapes[0])):
        if axis != indexed and len({shape[axis] for shape in shapes}) == 1:
            yield Use(tuple(axis for _ in shapes), (axis,))


@rule(":OneHot")
def one_hot(facts: Facts, node: Node) -> Iterator[Use]:
    """The axes of the indices."""
    rank = len(facts.shape(node.outputs[0]))
    new = int_attribute(node, "axis", -1) % max(rank, 1)
    for axis in range(rank):
        if axis != new:
            yield Use((axis - (axis > new), WHOLE, WHOLE), (axis,))


@rule(":Concat", ":Split")
def join_or_split(facts: Facts, node: Node) -> Iterator[Use]:
    """The axes along which nothing is joined or split."""
    rank = len(facts.shape(node.inputs[0]))
    own = int_attribute(node, "axis", 0) % max(rank, 1)
    count = len(node.inputs) if node.op == "Concat" else 1
    for axis in range(rank):
        if axis != own:
            reads = (*(axis for _ in range(count)), *(WHOLE for _ in node.inputs[count:]))
            yield Use(reads, tuple(axis for _ in node.outputs))


@rule(":Slice", ":Pad")
def cut_or_padded(facts: Facts, node: Node) -> Iterator[Use]:
    """The axes that are not cut, or not padded."""
    rank = len(facts.shape(node.inputs[0]))
    changed = _changed_axes(facts, node, rank)
    for axis in range(rank):
        if changed is not None and axis not in changed:
            yield Use((axis, *(WHOLE for _ in node.inputs[1:])), (axis,))


def _changed_axes(facts: Facts, node: Node, rank: int) -> set[int] | None:
    """The axes that a Slice names, or along which a Pad adds or removes; None if not known."""
    if node.op == "Pad":
        pads = facts.ints(node, 1)
        if not pads or len(pads) != 2 * rank or facts.present(node, 3):
            return None
        return {axis for axis in range(rank) if pads[axis] or pads[axis + rank]}
    if not facts.present(node, 3):
        starts = facts.ints(node, 1)
        return None if starts is None else set(range(len(starts)))
    axes = facts.ints(node, 3)
    return None if axes is None else {axis % rank for axis in axes}


@rule(":Trilu")
def trilu(facts: Facts, node: Node) -> Iterator[Use]:
    """The axes before the matrices."""
    for axis in range(len(facts.shape(node.inputs[0])) - 2):
        yield Use((axis, *(WHOLE for _ in node.inputs[1:])), (axis,))
