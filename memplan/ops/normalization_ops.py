"""Operators that bring rows, channels or batches to one scale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from memplan.ops.facets import Operator, Use, alike, whole
from memplan.ops.instance import FLOAT16, Instance, elements, item_bytes

_BY_AXIS = 13  # the opset from which Softmax normalizes one axis; before, all from one on


def _softmax(instance: Instance) -> Iterator[Use]:
    """Any axis but the one that it normalizes."""
    normalized = instance.axis(-1)
    for axis in range(instance.rank()) if instance.opset >= _BY_AXIS else ():
        if axis != normalized:
            yield Use((axis,), (axis,))


def _layer_norm(instance: Instance) -> Iterator[Use]:
    """The axes that it does not normalize; scale and bias, which have no more than the others,
    are read whole."""
    first = instance.axis(-1)
    normalized = instance.rank() - first
    if all(instance.rank(slot) <= normalized for slot in range(1, len(instance.inputs))):
        for axis in range(first):
            yield Use((axis, *whole(instance)), alike(instance, axis))


def _skip_layer_norm(instance: Instance) -> Iterator[Use]:
    """All axes but the last, if both summands have the whole shape."""
    if instance.shape(0) == instance.shape(1):
        for axis in range(instance.rank() - 1):
            yield Use((axis, axis, *whole(instance, 2)), alike(instance, axis))


def _softmax_scratch(instance: Instance) -> int | None:
    """Twice the tensor when the axis is not the last: input and output are transposed copies.

    Opsets before 13 flatten instead and take none. Source: softmax.cc, ComputeImplOpset13.
    """
    tensor = instance.input(0)
    if tensor is None:
        return None
    if instance.opset < _BY_AXIS or not instance.rank():
        return 0
    return 0 if instance.axis(-1) == instance.rank() - 1 else 2 * tensor.nbytes


def _batch_norm_scratch(instance: Instance) -> int | None:
    """Training: mean and variance of the batch, 2 x channels elements; inference: none."""
    tensor = instance.input(0)
    if tensor is None:
        return None
    if not instance.integer("training_mode", 0):
        return 0
    return 2 * (tensor.shape[1] if len(tensor.shape) > 1 else 1) * item_bytes(tensor)


def _lrn_scratch(instance: Instance) -> int | None:
    """The scale of all elements, and the squares of one image padded by size - 1 channels."""
    x = instance.input(0)
    if x is None:
        return None
    channels, pixels = x.shape[1], prod(x.shape[2:])
    return x.nbytes + (channels + instance.integer("size", 1) - 1) * pixels * item_bytes(x)


def _twice_input(instance: Instance) -> int | None:
    """Two copies of the input."""
    x = instance.input(0)
    return None if x is None else 2 * x.nbytes


def _norm_in_half(instance: Instance) -> int | None:
    """float16: scale and bias widened to float32; float32 and float64: none."""
    x = instance.input(0)
    if x is None:
        return None
    if x.dtype != FLOAT16:
        return 0
    return 4 * (elements(instance.input(1)) + elements(instance.input(2)))


def _skip_norm_in_half(instance: Instance) -> int | None:
    """float16: input, skip, result and all vectors widened to float32; otherwise none."""
    x = instance.input(0)
    if x is None:
        return None
    if x.dtype != FLOAT16:
        return 0
    vectors = sum(elements(instance.input(index)) for index in range(2, len(instance.inputs)))
    return 4 * (2 * elements(x) + elements(instance.input(1)) + vectors)


_SOFTMAX = Operator(
    axes=_softmax,
    scratch=_softmax_scratch,
    scratch_cuda=_softmax_scratch,
    scratch_in_halves=True,
)

OPERATORS: Mapping[str, Operator] = {
    **dict.fromkeys((":Softmax", ":LogSoftmax"), _SOFTMAX),
    ":Hardmax": Operator(scratch=_softmax_scratch, scratch_in_halves=True),
    ":LayerNormalization": Operator(
        axes=_layer_norm, scratch=_norm_in_half, optional_outputs=(1, 2)
    ),
    ":SimplifiedLayerNormalization": Operator(
        axes=_layer_norm, scratch=_norm_in_half, optional_outputs=(1,)
    ),
    ":RMSNormalization": Operator(axes=_layer_norm, scratch=_norm_in_half),
    "com.microsoft:SkipLayerNormalization": Operator(
        axes=_skip_layer_norm, scratch=_skip_norm_in_half, optional_outputs=(1, 2, 3)
    ),
    "com.microsoft:SkipSimplifiedLayerNormalization": Operator(scratch=_skip_norm_in_half),
    ":BatchNormalization": Operator(scratch=_batch_norm_scratch),
    ":LRN": Operator(scratch=_lrn_scratch),
    ":MeanVarianceNormalization": Operator(scratch=_twice_input),
}
