"""Operators that slide a window over images: convolutions and pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from memplan.ops.facets import Operator
from memplan.ops.instance import FLOAT, Instance, elements, item_bytes


def _conv_work(instance: Instance) -> float:
    """Multiply-adds: output elements × weights per output channel."""
    return float(elements(instance.output(0))) * prod(instance.shape(1)[1:])


def _conv_transpose_work(instance: Instance) -> float:
    """Multiply-adds: input elements × weights per input channel."""
    return float(elements(instance.input(0))) * prod(instance.shape(1)[1:])


def _conv_pads_are_zero(
    instance: Instance, image: Sequence[int], kernel: Sequence[int], out: Sequence[int]
) -> bool:
    mode = instance.text("auto_pad", "NOTSET")
    if mode == "VALID":
        return True
    if mode == "NOTSET":
        return not any(instance.integers("pads", [0]))
    ones = [1] * len(kernel)
    strides, dilations = instance.integers("strides", ones), instance.integers("dilations", ones)
    return all(
        (out[d] - 1) * strides[d] + (kernel[d] - 1) * dilations[d] + 1 <= image[d]
        for d in range(len(kernel))
    )


def _conv_is_plain_product(
    instance: Instance,
    image: Sequence[int],
    kernel: Sequence[int],
    out: Sequence[int],
    channels: int,
) -> bool:
    """Whether the convolution is one matrix product on the input as it lies in memory."""
    if any(s != 1 for s in instance.integers("strides", [1])):
        return False
    if not _conv_pads_are_zero(instance, image, kernel, out):
        return False
    if prod(kernel) == 1:
        return True
    dilated = any(d != 1 for d in instance.integers("dilations", [1]))
    if dilated or channels != 1 or len(kernel) > 2:
        return False
    wide = [(1, *kernel), (1, *image)] if len(kernel) == 1 else [tuple(kernel), tuple(image)]
    (kernel_h, kernel_w), (image_h, image_w) = wide
    return kernel_w == image_w or (kernel_h == image_h and kernel_w == 1)


_CONV_SEGMENT_BYTES = 128 * 128 * 4
_CONV_OPERATIONS_PER_THREAD = 64 * 1024
_CONV_MOST_THREADS = 16
_CONV_COLUMN_ALIGN = 16


def _conv_segments(filters: int, pixels: int, depth: int, threads: int) -> int:
    """How many threads MLAS gives one image: by work, then by columns in steps of 16."""
    work = filters * pixels * depth
    wanted = min(work // _CONV_OPERATIONS_PER_THREAD + 1, _CONV_MOST_THREADS, threads)
    columns = -(-pixels // wanted)
    if wanted > 1:
        columns = -(-columns // _CONV_COLUMN_ALIGN) * _CONV_COLUMN_ALIGN
        if columns >= pixels:
            return 1
        if columns * (wanted - 1) >= pixels:
            return wanted - 1
    return wanted


def _conv_scratch(instance: Instance) -> int | None:
    """One of three MLAS algorithms (convolve.cpp, MlasConvPrepare).

    A plain matrix product takes none. More filters than output pixels (per group): the unrolled
    image, pixels x channels x kernel x 4. Otherwise 64 KiB a thread: min(threads, batch x groups)
    threads, or for a single image as many as `_conv_segments` says.
    """
    x, weight, y = instance.input(0), instance.input(1), instance.output(0)
    if x is None or weight is None or y is None or x.dtype != FLOAT:
        return None
    if not elements(y):
        return 0
    groups = instance.integer("group", 1)
    image, kernel, out = x.shape[2:], weight.shape[2:], y.shape[2:]
    channels = weight.shape[1]
    if _conv_is_plain_product(instance, image, kernel, out, channels):
        return 0
    filters, pixels, depth = weight.shape[0] // groups, prod(out), channels * prod(kernel)
    if filters > pixels:
        return pixels * depth * 4
    parts = x.shape[0] * groups
    if parts > 1:
        return min(instance.threads, parts) * _CONV_SEGMENT_BYTES
    return _conv_segments(filters, pixels, depth, instance.threads) * _CONV_SEGMENT_BYTES


def _conv_transpose_scratch(instance: Instance) -> int | None:
    """The unfolded product of one image and group: input pixels x filters / group x kernel.

    Source: conv_transpose.cc, the column buffer (also for 1x1 kernels).
    """
    x, weight = instance.input(0), instance.input(1)
    if x is None or weight is None:
        return None
    return prod(x.shape[2:]) * prod(weight.shape[1:]) * item_bytes(x)


_CONV = Operator(work=_conv_work, scratch=_conv_scratch)

OPERATORS: Mapping[str, Operator] = {
    **dict.fromkeys((":Conv", "com.microsoft:FusedConv"), _CONV),
    **dict.fromkeys(
        ("com.microsoft.nchwc:Conv", "com.ms.internal.nhwc:Conv"), Operator(work=_conv_work)
    ),
    ":ConvTranspose": Operator(work=_conv_transpose_work, scratch=_conv_transpose_scratch),
    # Alone it takes NaN for no number, and the lowest finite one for minus infinity.
    ":MaxPool": Operator(optional_outputs=(1,), listed_outputs=2),
}
