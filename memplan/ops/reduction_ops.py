"""Operators that make one element of many: sums, extremes, and where these are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from memplan.ops.facets import SUM, Operator, Use, whole
from memplan.ops.instance import INT32, INT64, Instance, elements


def _reduction(instance: Instance, *, sums: bool = False) -> Iterator[Use]:
    """The axes that stay; with ``sums`` also those that go, as summands."""
    rank, axes = instance.rank(), instance.numbers(1, "axes")
    if axes is None or (not axes and instance.integer("noop_with_empty_axes", 0)):
        return
    reduced = {axis % rank for axis in axes} if axes and rank else set(range(rank))
    keeps = instance.integer("keepdims", 1)
    for axis in range(rank):
        if axis not in reduced:
            gone = 0 if keeps else sum(other < axis for other in reduced)
            yield Use((axis, *whole(instance)), (axis - gone,))
        elif sums:
            yield Use((axis, *whole(instance)), (SUM,))


def _place(instance: Instance) -> Iterator[Use]:
    """The axes that stay: places along another are what they are."""
    reduced = instance.axis(0)
    for axis in range(instance.rank()):
        if axis != reduced:
            gone = not instance.integer("keepdims", 1) and reduced < axis
            yield Use((axis,), (axis - gone,))


# The formulas of CUDA leave out the partial sums of reductions over the last axes: 8 bytes per
# output where few elements are reduced (seen up to 120), more where it takes several blocks.


def _squares(instance: Instance) -> int | None:
    """CUDA: the squares of the whole input."""
    tensor = instance.input(0)
    return None if tensor is None else tensor.nbytes


def _input_and_output(instance: Instance) -> int | None:
    """CUDA: exponentials of the input, and the largest per output; 16 B too much in one case."""
    tensor, result = instance.input(0), instance.outputs[0]
    return None if tensor is None or result is None else tensor.nbytes + result.nbytes


def _whole_numbers(instance: Instance) -> int | None:
    """CUDA: whole numbers are reduced in double precision, input and output; else none."""
    tensor, result = instance.input(0), instance.outputs[0]
    if tensor is None or result is None:
        return None
    return 8 * (elements(tensor) + elements(result)) if tensor.dtype in (INT32, INT64) else 0


_IN_DOUBLE = ("L1", "L2", "Max", "Mean", "Min", "Prod")

OPERATORS: Mapping[str, Operator] = {
    ":ReduceSum": Operator(axes=partial(_reduction, sums=True)),
    ":ReduceLogSum": Operator(axes=_reduction),
    ":ReduceLogSumExp": Operator(axes=_reduction, scratch_cuda=_input_and_output),
    ":ReduceSumSquare": Operator(axes=_reduction, scratch_cuda=_squares),
    **dict.fromkeys(
        (f":Reduce{kind}" for kind in _IN_DOUBLE),
        Operator(axes=_reduction, scratch_cuda=_whole_numbers),
    ),
    **dict.fromkeys((":ArgMax", ":ArgMin"), Operator(axes=_place)),
}
