"""Operators of the blocked convolution layout (NCHWc), which the CPU's optimizer creates.

16 channels are whole blocks on every processor.
"""

from __future__ import annotations

import numpy as np
from cases import Catalogue, Const, f32

DOMAIN = "com.microsoft.nchwc"


def _weight(*shape: int) -> Const:
    return Const(np.full(shape, 0.1, np.float32))


def _conv(book: Catalogue) -> None:
    x, image, bias = f32(2, 16, 14, 15), f32(2, 3, 14, 15), _weight(32)
    same, pads = {"kernel_shape": [3, 3]}, [1] * 4
    weight, depthwise = _weight(32, 16, 3, 3), _weight(16, 1, 3, 3)

    def add(label: str, *inputs: object, **attributes: object) -> None:
        book.add("Conv", label, *inputs, domain=DOMAIN, **attributes)

    add("plain", x, weight, **same)
    add("bias", x, weight, bias, **same, pads=pads)
    add("relu", x, weight, bias, **same, pads=pads, activation="Relu")
    add("stride", x, weight, bias, **same, pads=pads, strides=[2, 2])
    add("from an image", image, _weight(32, 3, 3, 3), bias, **same, pads=pads)
    add("1x1", x, _weight(32, 16, 1, 1), bias, kernel_shape=[1, 1])
    add("depthwise", x, depthwise, **same, pads=pads, group=16)
    add("sum", x, _weight(16, 16, 3, 3), None, f32(2, 16, 14, 15), **same, pads=pads)
    add("large", f32(4, 32, 56, 56), _weight(64, 32, 3, 3), **same, pads=pads)


def _others(book: Catalogue) -> None:
    x = f32(2, 16, 14, 15)
    for op in ("MaxPool", "AveragePool"):
        book.add(op, "2x2", x, domain=DOMAIN, kernel_shape=[2, 2], strides=[2, 2])
        book.add(op, "same shape", x, domain=DOMAIN, kernel_shape=[3, 3], pads=[1] * 4)
    for op in ("GlobalMaxPool", "GlobalAveragePool"):
        book.add(op, "plain", x, domain=DOMAIN)
        book.add(op, "1x1", f32(2, 16, 1, 1), domain=DOMAIN)
    book.add("Upsample", "nearest", x, domain=DOMAIN, scales=[1, 1, 2, 2])
    book.add("Upsample", "by one", x, domain=DOMAIN, scales=[1, 1, 1, 1])
    book.add("ReorderInput", "plain", x, domain=DOMAIN)
    book.add("ReorderInput", "channels last", f32(2, 14, 15, 16), domain=DOMAIN, channels_last=1)
    book.add("ReorderOutput", "plain", x, domain=DOMAIN, channels=16)
    book.add("ReorderOutput", "fewer", x, domain=DOMAIN, channels=12)


def fill(book: Catalogue) -> None:
    """Add the operators of the layout."""
    _conv(book)
    _others(book)
