"""Backward operators of ATen that ONNX has no form for, in terms of others.

Convolutions: the gradient by the input is a transposed convolution, that by the weight a
convolution with channels in the place of the batch. Further families have modules of their own:
pools, padding and sampling, selections and distances.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from memplan.pytorch.pool_rules import each, pool_table
from memplan.pytorch.sampling_rules import sampling_table
from memplan.pytorch.selection_rules import selection_table

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
        "addmv",
        "addcmul",
        "addcdiv",
        "lerp",
    ):
        packet = getattr(aten, name)
        for op in (getattr(packet, overload) for overload in packet.overloads()):
            if op in decomposition_table:
                table[op] = decomposition_table[op]
    table |= {**pool_table(), **sampling_table(), **selection_table()}
    table[aten.convolution_backward.default] = convolution_backward
    table[aten.embedding_dense_backward.default] = embedding_backward
    table[aten.index_put.default] = index_put
    table[aten._unsafe_index_put.default] = index_put
    table[aten.scatter_add.default] = scatter_add
    table[aten.squeeze.dims] = squeeze
    table[aten.native_layer_norm.default] = layer_norm_in_float64
    table[aten._weight_norm_interface_backward.default] = weight_norm_backward
    table[aten.diagonal_backward.default] = diagonal_backward
    table[aten.mv.default] = mv
    table[aten.dot.default] = dot
    table[aten.vdot.default] = dot
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
    """Rows added up where a token occurs more than once, in fewer nodes than torch writes it in."""
    if padding_idx >= 0:
        grad = grad * (indices != padding_idx).unsqueeze(-1).to(grad.dtype)
    if scale_grad_by_freq:
        flat = indices.reshape(-1).to(torch.int64)
        ones = torch.ones(flat.shape, dtype=torch.float32, device=grad.device)
        counts = torch.zeros([rows], device=grad.device).scatter_add(0, flat, ones)
        share = counts.index_select(0, flat).reshape([*indices.shape, 1])
        grad = grad / share.to(grad.dtype)
    zeros = grad.new_zeros([rows, grad.shape[-1]])
    return index_put(zeros, [indices], grad, True)


def index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Any:
    """Added slice by slice with ScatterElements: where an index occurs twice, the ScatterND that
    ONNX Runtime has for CPUs loses updates if more than one thread runs (1.31.1)."""
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    whole = [index for index in indices if index is not None and index.dtype != torch.bool]
    together = axes == list(range(axes[0], axes[0] + len(axes)))
    if not accumulate or len(whole) < len(axes) or not together:
        return NotImplemented
    lead, rest = list(x.shape[: axes[0]]), list(x.shape[axes[-1] + 1 :])
    number: Any = 0
    for axis, index in zip(axes, whole, strict=True):
        size, index = x.shape[axis], index.to(torch.int64)
        number = number * size + torch.where(index < 0, index + size, index)
    slices = values.expand([*lead, *number.shape, *rest]).reshape([*lead, -1, *rest])
    places = number.reshape([-1, *(1 for _ in rest)]).expand(slices.shape)
    flat = x.reshape([*lead, -1, *rest])
    return aten.scatter_add(flat, len(lead), places, slices).reshape(x.shape)


def scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    """In float32: no CPU kernel adds in float16, and sums of many would lose what is added."""
    if x.dtype not in (torch.float16, torch.bfloat16):
        return NotImplemented
    wide = x.to(torch.float32).scatter_add(dim, index, source.to(torch.float32))
    return wide.to(x.dtype)


def mv(matrix: Tensor, vector: Tensor) -> Tensor:
    """A vector as a matrix of one column: for other factors, what ONNX Runtime's
    MatmulTransposeFusion computes behind a transposition is wrong (1.31.1)."""
    return (matrix @ vector.unsqueeze(1)).squeeze(1)


def dot(x: Tensor, y: Tensor) -> Tensor:
    """The same of two vectors."""
    return (x.unsqueeze(0) @ y.unsqueeze(1)).reshape([])


def weight_norm_backward(
    grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """Gradients by direction and length of a weight that is a product of both."""
    axes = [axis for axis in range(v.dim()) if axis != dim % v.dim()]
    along = (v * grad).sum(axes, keepdim=True)
    norms = norms.reshape(along.shape)
    scale = g.reshape(along.shape) / norms
    by_v = scale * (grad - v * (along / (norms * norms)))
    return by_v, (along / norms).reshape(g.shape)


def diagonal_backward(grad: Tensor, sizes: Sizes, offset: int, dim1: int, dim2: int) -> Tensor:
    """Zeros, and on the diagonal the gradient; torch writes into a view, which no graph may."""
    rank = len(sizes)
    rows, columns = sizes[dim1], sizes[dim2]
    row = torch.arange(rows, dtype=torch.int64, device=grad.device)
    column = torch.arange(columns, dtype=torch.int64, device=grad.device)
    begin = row if offset >= 0 else row + offset
    spread = grad.index_select(-1, begin.clamp(0, grad.shape[-1] - 1)).unsqueeze(-1)
    on = (column[None, :] - row[:, None]) == offset
    found = torch.where(on, spread, torch.zeros([], dtype=grad.dtype, device=grad.device))
    order = [axis for axis in range(rank) if axis not in (dim1 % rank, dim2 % rank)]
    order += [dim1 % rank, dim2 % rank]
    return found.permute([order.index(axis) for axis in range(rank)])


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
    stride, padding, dilation = (each(v, rank) for v in (stride, padding, dilation))
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
