"""Indices of pools of images: at which element a window begins, and how far it reaches.

An index counts the elements of all planes, one after the other. On the CPU it lies in its window
whatever the elements are, NaN included (``pool_functors.h``; measured:
tests/ort/test_free_bytes.py); on CUDA it may lie outside (``max_pool_with_index.cu``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from memplan.ir.graph import Node
from memplan.ir.graph_facts import Facts

Ints = npt.NDArray[np.int64]

IMAGES = 4
"""The rank of images: batch, channels, rows, columns."""
_NO_PADDING = ("NOTSET", "VALID", b"NOTSET", b"VALID")


def plane_begins(batch: int, channels: int, size: int) -> tuple[Ints, Ints]:
    """Where planes of ``size`` elements begin, as a part by batch and one by channel, to be
    added: the proof looks into small constants only."""
    by_batch = np.arange(batch, dtype=np.int64) * (channels * size)
    by_channel = np.arange(channels, dtype=np.int64) * size
    return by_batch.reshape(batch, 1, 1, 1), by_channel.reshape(1, channels, 1, 1)


def is_unit_pool(attributes: Mapping[str, object]) -> bool:
    """Whether a MaxPool of images looks at each element by itself, and counts along rows."""
    kernel, steps = attributes.get("kernel_shape"), attributes.get("strides", [1, 1])
    unpadded = attributes.get("pads", [0, 0, 0, 0]) == [0, 0, 0, 0]
    return kernel == steps == [1, 1] and unpadded and not attributes.get("storage_order", 0)


def window_places(
    shape: Sequence[int], attributes: Mapping[str, object]
) -> tuple[Ints, Ints, int] | None:
    """The first place of each window of a MaxPool in its plane, as a part by row and one by column,
    and how far its last place is from there; None where that is not known."""
    given = {
        "strides": [1, 1],
        "dilations": [1, 1],
        "pads": [0, 0, 0, 0],
        "kernel_shape": [],
        **attributes,
    }
    kernel, steps, apart, pads = (
        given[name] for name in ("kernel_shape", "strides", "dilations", "pads")
    )
    if not (isinstance(kernel, list) and isinstance(steps, list)):
        return None
    if not (isinstance(apart, list) and isinstance(pads, list)):
        return None
    if len(shape) != IMAGES or len(kernel) != IMAGES - 2 or given.get("storage_order", 0):
        return None
    # Where windows are rounded up, ONNX and the runtime may not agree on their number.
    if given.get("auto_pad", "NOTSET") not in _NO_PADDING or given.get("ceil_mode", 0):
        return None
    rows, columns = (
        np.arange(_windows(shape[2 + k], kernel[k], steps[k], pads[k] + pads[k + 2], apart[k]))
        * steps[k]
        - pads[k]
        for k in range(2)
    )
    reach = (kernel[0] - 1) * apart[0] * shape[3] + (kernel[1] - 1) * apart[1]
    return (rows * shape[3]).reshape(1, 1, -1, 1), columns.reshape(1, 1, 1, -1), reach


def _windows(size: int, kernel: int, step: int, padding: int, apart: int) -> int:
    """How many windows there are along an axis (ONNX, MaxPool, rounded down)."""
    return (size + padding - apart * (kernel - 1) - 1) // step + 1


def takes_first(facts: Facts, node: Node) -> bool:
    """Whether a ``Slice`` takes the first row and column of each plane."""
    if node.key != ":Slice" or not facts.absent(node, 4):
        return False
    starts, ends, axes = (facts.value(node, slot) for slot in (1, 2, 3))
    if starts is None or ends is None or axes is None:
        return False
    spans = zip(axes.tolist(), starts.tolist(), ends.tolist(), strict=True)
    return sorted((axis % IMAGES, start, end) for axis, start, end in spans) == [
        (2, 0, 1),
        (3, 0, 1),
    ]
