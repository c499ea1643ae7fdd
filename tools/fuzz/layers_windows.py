"""Layers of :mod:`drafts`: convolutions, pools, resizing, normalization and attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from drafts import Draft, Rejected
from layers import layer, some


def _windows(
    d: Draft, sizes: list[int], *, dilated: bool = True
) -> tuple[list[int], dict[str, Any]]:
    """A kernel, and strides, dilations and padding of any side."""
    rank = len(sizes)
    kernel = [d.r.randint(1, min(3, n)) for n in sizes]
    given: dict[str, Any] = {}
    if d.maybe(0.6):
        given["strides"] = [d.r.choice((1, 2, 3)) for _ in sizes]
    if dilated and d.maybe(0.4):
        pairs = zip(kernel, sizes, strict=True)
        given["dilations"] = [d.r.choice((1, 2)) if 2 * (k - 1) < n else 1 for k, n in pairs]
    way = d.r.random()
    if way < 0.5:
        given["pads"] = [d.r.randint(0, kernel[k % rank] - 1) for k in range(2 * rank)]
    elif way < 0.7:
        given["auto_pad"] = d.r.choice(("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"))
    return kernel, given


def _image(d: Draft, channels: int | None = None, most: int = 5) -> tuple[str, list[int]]:
    """A tensor of N × C × one to three axes, and the sizes of those."""
    rank = d.r.choice((1, 2, 2, 3))
    sizes = [d.r.randint(1, most if rank < 3 else 3) for _ in range(rank)]
    count = channels or d.r.choice((1, 2))
    return d.of((d.r.choice((1, 2)), count, *sizes)), sizes


@layer("Conv", "ConvTranspose")
def convolution(d: Draft, op: str) -> None:
    group, per = d.r.choice((1, 1, 2)), d.r.choice((1, 2))
    x, sizes = _image(d, group * per)
    kernel, given = _windows(d, sizes)
    filters = d.r.choice((1, 2))
    if op == "Conv":
        shape = (group * filters, per, *kernel)
    else:
        shape = (group * per, filters, *kernel)
        strides = given.get("strides", [1] * len(sizes))
        if d.maybe(0.3):
            given["output_padding"] = [d.r.randrange(n) for n in strides]
        if given.get("auto_pad", "").startswith("SAME"):
            del given["auto_pad"]
    if group > 1 or d.maybe(0.3):
        given["group"] = group
    if d.maybe(0.5):
        given["kernel_shape"] = kernel
    inputs = [x, d.of(shape)]
    if d.maybe(0.5):
        inputs.append(d.of((group * filters,)))
    d.add(op, inputs, **given)


@layer("MaxPool", "AveragePool")
def pool(d: Draft, op: str) -> None:
    x, sizes = _image(d)
    dilated = {"MaxPool": 10, "AveragePool": 19}[op] <= d.opset
    kernel, given = _windows(d, sizes, dilated=dilated)
    if d.opset >= 10:
        given |= some(d, ceil_mode=(0, 1))
    if op == "AveragePool":
        given |= some(d, count_include_pad=(0, 1))
    count = d.r.choice((1, 1, 2)) if op == "MaxPool" else 1
    d.add(op, [x], count, kernel_shape=kernel, **given)


@layer("GlobalAveragePool", "GlobalMaxPool")
def global_pool(d: Draft, op: str) -> None:
    d.add(op, [d.full(3, 5)])


@layer("Resize")
def resize(d: Draft, op: str) -> None:
    x = d.of((1, d.r.choice((1, 2)), *(d.r.randint(1, 4) for _ in range(d.r.choice((1, 2))))))
    shape = d.arrays[x].shape
    mode = d.r.choice(("nearest", "linear", "cubic") if len(shape) == 4 else ("nearest", "linear"))
    factors = [1.0, 1.0, *(d.r.choice((1.0, 2.0, 0.5, 1.5, 3.0)) for _ in shape[2:])]
    sizes = [max(1, int(n * f)) for n, f in zip(shape, factors, strict=True)]
    given: dict[str, Any] = {"mode": mode}
    if d.opset >= 11:
        given |= some(
            d,
            coordinate_transformation_mode=(
                *("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"),
            ),
        )
        if mode == "nearest":
            given |= some(
                d, nearest_mode=("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
            )
        if mode == "cubic":
            given |= some(d, cubic_coeff_a=(-0.75, -0.5))
            given |= some(d, exclude_outside=(0, 1))
    scales = d.constant(factors, np.float32)
    if d.opset < 11:
        d.add(op, [x, scales], mode="nearest" if mode == "cubic" else mode)
    elif d.maybe(0.5):
        d.add(op, [x, "" if d.opset >= 13 else d.constant([], np.float64), scales], **given)
    else:
        none = "" if d.opset >= 13 else d.constant([], np.float32)
        region = "" if d.opset >= 13 else d.constant([], np.float64)
        d.add(op, [x, region, none, d.ints(sizes)], **given)


@layer("LayerNormalization", "RMSNormalization")
def layer_norm(d: Draft, op: str) -> None:
    x = d.pick(lambda s: 1 <= len(s) <= 4 and math.prod(s) > 1, (2, 3, 4))
    shape = d.arrays[x].shape
    axis = d.axis(len(shape))
    scale = list(shape[axis:])
    given = {} if axis in (-1, len(shape) - 1) and d.maybe(0.5) else {"axis": axis}
    inputs = [x, d.of(scale)]
    count = 1
    if op == "LayerNormalization":
        inputs += [d.of(scale)] if d.maybe(0.5) else []
        count = d.r.choice((1, 1, 3))
    d.add(op, inputs, count, **given, **some(d, epsilon=(1e-5, 1e-2, 0.3)))


@layer("GroupNormalization", "InstanceNormalization", "BatchNormalization")
def channel_norm(d: Draft, op: str) -> None:
    group = d.r.choice((1, 2))
    x, _ = _image(d, d.r.choice((1, 2)) * group)
    c = d.arrays[x].shape[1]
    given = some(d, epsilon=(1e-5, 1e-2, 0.3))
    if op == "GroupNormalization":
        if d.opset < 21:
            raise Rejected  # that of opset 18 is deprecated
        d.add(op, [x, d.of((c,)), d.of((c,))], num_groups=group, **given)
        return
    inputs = [x, d.of((c,)), d.of((c,))]
    if op == "InstanceNormalization":
        d.add(op, inputs, **given)
        return
    given |= some(d, momentum=(0.9, 0.3))
    mean = d.of((c,)) if d.maybe(0.4) else d.constant(d.numbers((c,)))
    variance = d.leaf((c,), 0.4, 2.0) if d.maybe(0.4) else d.constant(d.numbers((c,), 0.4, 2.0))
    count = 1
    if d.opset >= 14 and d.maybe(0.5):
        given["training_mode"] = 1
        count = 3
        # ONNX Runtime writes over what they are read from, whoever else reads it.
        mean, variance = d.constant(d.numbers((c,))), d.constant(d.numbers((c,), 0.4, 2.0))
    d.add(op, [*inputs, mean, variance], count, **given)


@layer("LRN")
def local_norm(d: Draft, op: str) -> None:
    x = d.of([d.r.choice((1, 2, 3)) for _ in range(4)])
    given = some(d, alpha=(1e-4, 0.5), beta=(0.75, 1.3), bias=(1.0, 2.0))
    d.add(op, [x], size=d.r.choice((1, 3, 5)), **given)


@layer("LpNormalization")
def lp_norm(d: Draft, op: str) -> None:
    x = d.full(1, 4)
    axis = d.axis(d.arrays[x].ndim) if d.maybe(0.7) else None
    d.add(op, [x], axis=axis, **some(d, p=(1, 2)))


@layer("MeanVarianceNormalization")
def mean_variance(d: Draft, op: str) -> None:
    x = d.pick(lambda s: len(s) == 4 and math.prod(s) > 2, (2, 2, 3, 2))
    given = {} if d.maybe(0.4) else {"axes": d.axes(4, 1)}
    d.add(op, [x], **given)


@layer("Attention")
def attention(d: Draft, op: str) -> None:
    batch, length, other, size = (d.r.choice((1, 2)), d.r.choice((1, 2)), d.r.choice((1, 3)), 2)
    heads, shared = d.r.choice(((1, 1), (2, 2), (2, 1)))
    given = some(d, is_causal=(0, 1), scale=(0.3, 1.0), softcap=(0.0, 2.0))
    if d.maybe(0.5):
        shapes = [(batch, length, heads * size), *[(batch, other, shared * size)] * 2]
        given |= {"q_num_heads": heads, "kv_num_heads": shared}
    else:
        shapes = [(batch, heads, length, size), *[(batch, shared, other, size)] * 2]
    inputs = [d.of(shape) for shape in shapes]
    if d.maybe(0.4):
        inputs.append(d.of((length, other)))
    d.add(op, inputs, **given)


@layer("RotaryEmbedding")
def rotary(d: Draft, op: str) -> None:
    batch, heads, length, size = d.r.choice((1, 2)), d.r.choice((1, 2)), d.r.choice((1, 2, 3)), 4
    given: dict[str, Any] = some(d, interleaved=(0, 1))
    turn = size
    if d.maybe(0.3):
        turn = given["rotary_embedding_dim"] = 2
    if d.maybe(0.5):
        x = d.of((batch, length, heads * size))
        given["num_heads"] = heads
    else:
        x = d.of((batch, heads, length, size))
    if d.maybe(0.5):
        tables = [d.of((5, turn // 2)) for _ in range(2)]
        tables.append(d.ints([[d.r.randrange(5) for _ in range(length)] for _ in range(batch)]))
    else:
        tables = [d.of((batch, length, turn // 2)) for _ in range(2)]
    d.add(op, [x, *tables], **given)
