"""Backward operators of ATen that ONNX has no form for, in terms of others.

Convolutions: the gradient by the input is a transposed convolution, that by the weight a
convolution with channels in the place of the batch. Pools: a scatter to where the maxima were, a
transposed convolution with equal weights. Resizing: products with the matrices that interpolate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

aten = torch.ops.aten
Sizes = Sequence[int]


def backward_table() -> dict[Any, Callable[..., Any]]:
    """Decompositions for a joint graph, on top of those of a forward graph."""
    table: dict[Any, Any] = {}
    # These have an ONNX form, but not one that ONNX Runtime can train with.
    for name in (
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_functional",
        "_native_batch_norm_legit_no_training",
        "native_batch_norm_backward",
        "native_group_norm",
        "native_layer_norm_backward",
        "hardtanh_backward",  # torch's exporter has another gradient at the bounds
        "nll_loss_forward",
        "nll_loss2d_forward",
        "addcmul",
        "addcdiv",
        "lerp",
    ):
        packet = getattr(aten, name)
        for op in (getattr(packet, overload) for overload in packet.overloads()):
            if op in decomposition_table:
                table[op] = decomposition_table[op]
    table[aten.convolution_backward.default] = convolution_backward
    table[aten.max_pool2d_with_indices_backward.default] = max_pool2d_backward
    table[aten.avg_pool2d_backward.default] = avg_pool2d_backward
    table[aten._adaptive_avg_pool2d_backward.default] = adaptive_avg_pool2d_backward
    table[aten.upsample_nearest2d_backward.default] = upsample_nearest2d_backward
    table[aten.upsample_bilinear2d_backward.default] = upsample_bilinear2d_backward
    table[aten.embedding_dense_backward.default] = embedding_backward
    table[aten.index_put.default] = index_put
    table[aten.squeeze.dims] = squeeze
    table[aten.native_layer_norm.default] = layer_norm_in_float64
    return table


def layer_norm_in_float64(
    x: Tensor, shape: Sizes, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Any:
    """Written out: the mean and deviation that ONNX's operator hands out are float32."""
    if x.dtype != torch.float64:
        return NotImplemented
    axes = list(range(x.dim() - len(shape), x.dim()))
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    inverse = torch.rsqrt(variance + eps)
    y = (x - mean) * inverse
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias), mean, inverse


def squeeze(x: Tensor, dims: Sizes) -> Tensor:
    """One reshape instead of one squeeze per dimension."""
    dims = [d % x.dim() for d in dims]
    return x.reshape([n for d, n in enumerate(x.shape) if d not in dims or n != 1])


def embedding_backward(
    grad: Tensor, indices: Tensor, rows: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    """Rows added up where a token occurs more than once."""
    if scale_grad_by_freq:
        raise NotImplementedError("embedding with scale_grad_by_freq")
    if padding_idx >= 0:
        grad = grad * (indices != padding_idx).unsqueeze(-1).to(grad.dtype)
    zeros = grad.new_zeros([rows, grad.shape[-1]])
    return index_put(zeros, [indices], grad, True)


def index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Any:
    """Added slice by slice with ScatterElements: where an index occurs twice, the ScatterND that
    ONNX Runtime has for CPUs loses updates if more than one thread runs (1.31.1)."""
    whole = [index for index in indices if index is not None and index.dtype != torch.bool]
    if not accumulate or len(whole) < len(indices):
        return NotImplemented
    number: Any = 0
    for size, index in zip(x.shape, whole, strict=False):
        number = number * size + torch.where(index < 0, index + size, index)
    rest = list(x.shape[len(whole) :])
    slices = values.expand([*number.shape, *rest]).reshape([-1, *rest])
    places = number.reshape([-1, *(1 for _ in rest)]).expand(slices.shape)
    return x.reshape([-1, *rest]).scatter_add(0, places, slices).reshape(x.shape)


def convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sizes | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of a convolution of any kind, in terms of convolutions."""
    rank = weight.dim() - 2
    stride, padding, dilation = (_each(v, rank) for v in (stride, padding, dilation))
    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        grad_x = _by_input(grad, x, weight, stride, padding, dilation, transposed, groups)
    if output_mask[1]:
        image, window = (grad, x) if transposed else (x, grad)
        sizes = list(weight.shape[2:])
        grad_weight = _by_weight(image, window, sizes, stride, padding, dilation, groups)
    if output_mask[2]:
        grad_bias = grad.sum([0, *range(2, rank + 2)])
    return grad_x, grad_weight, grad_bias


def _by_input(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    groups: int,
) -> Tensor:
    rank = weight.dim() - 2
    if transposed:
        none = [0] * rank
        return aten.convolution(grad, weight, None, stride, padding, dilation, False, none, groups)
    reach = [
        (grad.shape[2 + d] - 1) * stride[d]
        - 2 * padding[d]
        + dilation[d] * (weight.shape[2 + d] - 1)
        + 1
        for d in range(rank)
    ]
    missing = [x.shape[2 + d] - reach[d] for d in range(rank)]
    return aten.convolution(grad, weight, None, stride, padding, dilation, True, missing, groups)


def _by_weight(
    image: Tensor,
    window: Tensor,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
) -> Tensor:
    """One convolution of the image with the output's gradient, channels in the place of samples."""
    images, windows = _channels_first(image, groups), window.transpose(0, 1)
    unpadded = [0] * len(kernel)
    found = aten.convolution(
        images, windows, None, dilation, padding, stride, False, unpadded, groups
    ).transpose(0, 1)
    for d, size in enumerate(kernel):  # longer where the stride does not divide the image
        found = found.narrow(2 + d, 0, size)
    return found


def _channels_first(x: Tensor, groups: int) -> Tensor:
    """samples × (groups · channels) × … → channels × (groups · samples) × …"""
    if groups == 1:
        return x.transpose(0, 1)
    samples, channels, *sizes = x.shape
    apart = x.reshape([samples, groups, channels // groups, *sizes])
    order = [2, 1, 0, *range(3, 3 + len(sizes))]
    return apart.permute(order).reshape([channels // groups, groups * samples, *sizes])


def _each(values: Sizes, rank: int) -> list[int]:
    return list(values) * rank if len(values) == 1 else list(values)


def max_pool2d_backward(
    grad: Tensor,
    x: Tensor,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """Scatter the gradient to where the maxima were."""
    lead = list(x.shape[:-2])
    flat = grad.new_zeros([*lead, x.shape[-2] * x.shape[-1]])
    rows = [*lead, -1]
    return flat.scatter_add(-1, indices.reshape(rows), grad.reshape(rows)).reshape(x.shape)


def avg_pool2d_backward(
    grad: Tensor,
    x: Tensor,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Tensor:
    """A transposed convolution per channel with a kernel of equal numbers; where windows have
    different numbers of pixels, of the gradient divided by them."""
    kernel, padding = _each(kernel, 2), _each(padding, 2)
    stride = _each(stride, 2) if stride else kernel
    share = 1.0 / (divisor or math.prod(kernel))
    if not divisor and (ceil_mode or (any(padding) and not count_include_pad)):
        share = 1.0
        rows, columns = (
            _pixels(
                grad.shape[-2 + d],
                x.shape[-2 + d],
                (kernel[d], stride[d], padding[d]),
                count_include_pad,
                grad,
            )
            for d in range(2)
        )
        grad = grad / (rows[:, None] * columns)
    channels = x.shape[-3]
    weight = grad.new_full([channels, 1, *kernel], share)
    missing = [
        x.shape[-2 + d] - ((grad.shape[-2 + d] - 1) * stride[d] - 2 * padding[d] + kernel[d])
        for d in range(2)
    ]
    beyond = [max(0, n) for n in missing]
    found = aten.convolution(grad, weight, None, stride, padding, [1, 1], True, beyond, channels)
    for d, n in enumerate(missing):
        if n < 0:  # the last window reaches beyond the padding
            found = found.narrow(-2 + d, 0, x.shape[-2 + d])
    return found


def _pixels(
    count: int, size: int, window: tuple[int, int, int], padding_counts: bool, like: Tensor
) -> Tensor:
    """How many pixels each of ``count`` windows (extent, stride, padding) averages on an axis."""
    extent, stride, padding = window
    begin = torch.arange(count, dtype=torch.int64, device=like.device) * stride - padding
    end = (begin + extent).clamp(max=size + padding)
    if not padding_counts:
        begin, end = begin.clamp(min=0), end.clamp(max=size)
    return (end - begin).to(like.dtype)


def adaptive_avg_pool2d_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Every bin's gradient, shared by its pixels."""
    (height, width), (rows, columns) = x.shape[-2:], grad.shape[-2:]
    if height % rows or width % columns:
        down, across = _bins(rows, height, grad), _bins(columns, width, grad)
        return down.transpose(0, 1) @ (grad @ across)
    high, wide = height // rows, width // columns
    shared = (grad / (high * wide)).unsqueeze(-1).unsqueeze(-3)
    return shared.expand([*grad.shape[:-2], rows, high, columns, wide]).reshape(x.shape)


def _bins(count: int, size: int, like: Tensor) -> Tensor:
    """count × size: the weight of a pixel in each bin of an adaptive average."""
    row = torch.arange(count, dtype=torch.int64, device=like.device)[:, None]
    begin = (row * size).div(count, rounding_mode="floor")
    end = ((row + 1) * size + count - 1).div(count, rounding_mode="floor")
    column = torch.arange(size, dtype=torch.int64, device=like.device)[None, :]
    inside = ((column >= begin) & (column < end)).to(like.dtype)
    return inside / (end - begin).to(like.dtype)


def upsample_nearest2d_backward(
    grad: Tensor, output_size: Sizes, input_size: Sizes, *scales: float | None
) -> Tensor:
    """The sum over the pixels that one pixel became."""
    samples, channels, height, width = input_size
    rows, columns = grad.shape[2], grad.shape[3]
    if rows % height or columns % width:
        raise NotImplementedError("nearest resizing by anything but whole factors")
    apart = [samples, channels, height, rows // height, width, columns // width]
    return grad.reshape(apart).sum([3, 5])


def upsample_bilinear2d_backward(
    grad: Tensor,
    output_size: Sizes,
    input_size: Sizes,
    align_corners: bool,
    *scales: float | None,
) -> Tensor:
    """Products with the matrices that interpolate, transposed."""
    down = _interpolation(grad.shape[2], input_size[2], align_corners, grad)
    across = _interpolation(grad.shape[3], input_size[3], align_corners, grad)
    return down.transpose(0, 1) @ (grad @ across)


def _interpolation(count: int, size: int, align_corners: bool, like: Tensor) -> Tensor:
    """count × size."""
    row = torch.arange(count, dtype=like.dtype, device=like.device)
    if align_corners:
        source = row * ((size - 1) / max(count - 1, 1))
    else:
        source = ((row + 0.5) * (size / count) - 0.5).clamp(min=0.0)
    column = torch.arange(size, dtype=like.dtype, device=like.device)
    near = source.clamp(max=size - 1.0)[:, None] - column[None, :]
    return (1 - near.abs()).clamp(min=0.0)
