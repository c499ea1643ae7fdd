"""Gradients of convolutions and pools against finite differences, over their attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from gradients import Array, check, draw, single, with_symbols
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

QUIET = settings(
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
Draw = Any
AUTO = ["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]


@dataclass(frozen=True)
class Case:
    """A kernel and how it slides; ``attributes`` as ONNX has them."""

    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    attributes: dict[str, Any]


@st.composite
def cases(draw_: Draw, *, dilated: bool = True, pool: bool = False) -> Case:
    """Windows that fit at least once; pads smaller than the kernel, as runtimes ask of pools."""
    rank = draw_(st.integers(1, 3))
    top = (9, 6, 4)[rank - 1]
    kernel, strides, dilations, sizes = [], [], [], []
    for _ in range(rank):
        kernel.append(draw_(st.integers(1, 3)))
        strides.append(draw_(st.integers(1, 3)))
        dilations.append(draw_(st.integers(1, 2)) if dilated else 1)
        span = (kernel[-1] - 1) * dilations[-1] + 1
        sizes.append(draw_(st.integers(span, max(top, span))))
    attributes: dict[str, Any] = {"strides": strides}
    if dilated:
        attributes["dilations"] = dilations
    auto = draw_(st.sampled_from(AUTO))
    if auto == "NOTSET":
        attributes["pads"] = [
            draw_(st.integers(0, min(2, n - 1) if pool else 2)) for n in kernel * 2
        ]
    else:
        attributes["auto_pad"] = auto
    return Case(tuple(sizes), tuple(kernel), attributes)


def groups(draw_: Draw) -> tuple[int, int, int, int]:
    """Batch, groups, channels of the input and of the output per group."""
    return tuple(draw_(st.integers(1, n)) for n in (3, 3, 2, 2))  # type: ignore[return-value]


@QUIET
@given(st.data())
def test_conv(data: st.DataObject) -> None:
    case = data.draw(cases())
    batch, group, inner, outer = groups(data.draw)
    x = draw((batch, group * inner, *case.sizes))
    weight = draw((group * outer, inner, *case.kernel), 1)
    bias = [draw((group * outer,), 2)] if data.draw(st.booleans()) else []
    check(single("Conv", x, weight, *bias, group=group, **case.attributes))


@QUIET
@given(st.data())
def test_conv_transpose(data: st.DataObject) -> None:
    case = data.draw(cases())
    batch, group, inner, outer = groups(data.draw)
    attributes = dict(case.attributes)
    x = draw((batch, group * inner, *(min(n, 4) for n in case.sizes)))
    weight = draw((group * inner, outer, *case.kernel), 1)
    bias = [draw((group * outer,), 2)] if data.draw(st.booleans()) else []
    further = [
        data.draw(st.integers(0, max(s, d) - 1))
        for s, d in zip(attributes["strides"], attributes["dilations"], strict=True)
    ]
    if "auto_pad" not in attributes:
        attributes["output_padding"] = further
    sizes = natural(x.shape[2:], case, further)
    if min(sizes) < 1:
        return
    if "pads" not in attributes and data.draw(st.booleans()):
        attributes["output_shape"] = [max(n - data.draw(st.integers(0, 2)), 1) for n in sizes]
    check(single("ConvTranspose", x, weight, *bias, group=group, **attributes))


def natural(counts: Sequence[int], case: Case, further: Sequence[int]) -> list[int]:
    """Sizes of a transposed convolution's output; without padding where that is left to fit."""
    rank = len(counts)
    pads = case.attributes.get("pads", [0] * 2 * rank)
    return [
        (counts[k] - 1) * case.attributes["strides"][k]
        + (case.kernel[k] - 1) * case.attributes["dilations"][k]
        + 1
        + (further[k] if "pads" in case.attributes else 0)
        - pads[k]
        - pads[rank + k]
        for k in range(rank)
    ]
