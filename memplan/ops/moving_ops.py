"""Operators that move elements, or make constant ones: views, transposes, gathers, joins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from math import prod

from memplan.ops.facets import WHOLE, Operator, Use, aligned, alike, whole
from memplan.ops.instance import Instance


def _view(instance: Instance, *, shape_slot: int = -1) -> Iterator[Use]:
    """A range of an axis is a range of another, if as many elements stand before both: [8192, V] in
    chunks of rows is [8, 1024, V] in chunks of batches."""
    made = instance.output(0)
    if made is None:
        return
    source, result = instance.shape(0), made.shape
    places = {prod(result[:axis]): axis for axis, size in enumerate(result) if size > 1}
    for axis, size in enumerate(source):
        target = places.get(prod(source[:axis]))
        if size > 1 and target is not None:
            yield Use((axis, *whole(instance)), (target,), shape_slot=shape_slot)


def _axes_named(instance: Instance) -> Iterator[Use]:
    """As of a view, if it is known which axes come or go: without any, a chunk of one would lose
    its own."""
    if instance.numbers(1, "axes"):
        yield from _view(instance)


def _transpose(instance: Instance) -> Iterator[Use]:
    """Any axis, where it goes."""
    for target, axis in enumerate(instance.integers("perm", range(instance.rank())[::-1])):
        yield Use((axis,), (target,))


def _expand(instance: Instance) -> Iterator[Use]:
    """Any axis of the result; what is repeated along it is read whole."""
    made = instance.output(0)
    result = () if made is None else made.shape
    for axis, size in enumerate(result):
        own = aligned(instance.shape(0), len(result), axis, size)
        yield Use((own, WHOLE), (axis,), shape_slot=1)


def _constant_of_shape(instance: Instance) -> Iterator[Use]:
    """Any axis."""
    made = instance.output(0)
    for axis in range(0 if made is None else len(made.shape)):
        yield Use((WHOLE,), (axis,), shape_slot=0)


def _gather(instance: Instance) -> Iterator[Use]:
    """The axes of the indices, and those of the data that are not indexed."""
    indices, indexed = instance.rank(1), instance.axis(0)
    for axis in range(indices):
        yield Use((WHOLE, axis), (indexed + axis,))
    for axis in range(instance.rank()):
        if axis != indexed:
            yield Use((axis, WHOLE), (axis if axis < indexed else axis - 1 + indices,))


def _by_elements(instance: Instance) -> Iterator[Use]:
    """The axes that are not indexed, if data and indices are as long there."""
    shapes = [instance.shape(slot) for slot in range(len(instance.inputs))]
    indexed = instance.axis(0)
    if len({len(shape) for shape in shapes}) > 1:
        return
    for axis in range(instance.rank()):
        if axis != indexed and len({shape[axis] for shape in shapes}) == 1:
            yield Use(tuple(axis for _ in shapes), (axis,))


def _one_hot(instance: Instance) -> Iterator[Use]:
    """The axes of the indices."""
    new = instance.integer("axis", -1) % (instance.rank() + 1)
    for axis in range(instance.rank()):
        yield Use((axis, WHOLE, WHOLE), (axis + (axis >= new),))


def _concat(instance: Instance) -> Iterator[Use]:
    """The axes along which nothing is joined."""
    joined = instance.axis(0)
    for axis in range(instance.rank()):
        if axis != joined:
            yield Use(tuple(axis for _ in instance.inputs), (axis,))


def _split(instance: Instance) -> Iterator[Use]:
    """The axes along which nothing is split."""
    yield from _unchanged(instance, {instance.axis(0)})


def _unchanged(instance: Instance, changed: set[int]) -> Iterator[Use]:
    """All axes but some; inputs other than the first are read whole."""
    for axis in range(instance.rank()):
        if axis not in changed:
            yield Use((axis, *whole(instance)), alike(instance, axis))


def _slice(instance: Instance) -> Iterator[Use]:
    """The axes that are not cut."""
    starts = instance.numbers(1) if instance.input(1) is not None else None
    axes = instance.numbers(3) if instance.input(3) is not None else range(len(starts or ()))
    if starts is not None and axes is not None:
        yield from _unchanged(instance, {axis % instance.rank() for axis in axes})


def _pad(instance: Instance) -> Iterator[Use]:
    """The axes that nothing is added to, or taken from."""
    rank, pads = instance.rank(), instance.numbers(1)
    if pads and len(pads) == 2 * rank and instance.input(3) is None:
        yield from _unchanged(instance, {k for k in range(rank) if pads[k] or pads[k + rank]})


def _trilu(instance: Instance) -> Iterator[Use]:
    """The axes before the matrices."""
    yield from _unchanged(instance, set(range(max(instance.rank() - 2, 0), instance.rank())))


def _resize_scratch(instance: Instance) -> int | None:
    """Linear: per output row and column 16 bytes (24 with a depth axis); other modes: none.

    An unchanged size is copied without any. Antialiasing is not modelled.
    """
    x, y = instance.input(0), instance.output(0)
    if x is None or y is None:
        return None
    if instance.integer("antialias", 0):
        return None
    if instance.text("mode", "nearest") != "linear" or tuple(x.shape) == tuple(y.shape):
        return 0
    rank = len(x.shape)
    if rank in (3, 5):
        return 24 * sum(y.shape[-3:])
    channels_last = rank == 4 and x.shape[1] != y.shape[1] and x.shape[3] == y.shape[3]
    return 16 * sum(y.shape[1:3] if channels_last else y.shape[-2:])


OPERATORS: Mapping[str, Operator] = {
    ":Reshape": Operator(axes=partial(_view, shape_slot=1), view=True, moves=True, stays=True),
    ":Flatten": Operator(axes=_view, view=True, moves=True, stays=True),
    **dict.fromkeys(
        (":Unsqueeze", ":Squeeze"), Operator(axes=_axes_named, view=True, moves=True, stays=True)
    ),
    **dict.fromkeys((":Shape", ":Size"), Operator(reads_shape=True)),
    ":Transpose": Operator(axes=_transpose, moves=True),
    ":Expand": Operator(axes=_expand, moves=True, stays=True),
    ":Tile": Operator(moves=True, stays=True),
    ":ConstantOfShape": Operator(axes=_constant_of_shape),
    ":Gather": Operator(axes=_gather, moves=True),
    ":GatherElements": Operator(axes=_by_elements, moves=True),
    ":GatherND": Operator(moves=True),
    ":ScatterElements": Operator(axes=_by_elements),
    ":OneHot": Operator(axes=_one_hot),
    ":Concat": Operator(axes=_concat, alone=True),
    ":Split": Operator(axes=_split, moves=True, stays=True),
    ":Slice": Operator(axes=_slice, moves=True),
    ":Pad": Operator(axes=_pad),
    ":Trilu": Operator(axes=_trilu),
    **dict.fromkeys((":Resize", ":Upsample"), Operator(scratch=_resize_scratch)),
}
