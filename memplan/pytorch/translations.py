"""ATen operators → ONNX where torch's exporter means inference, or takes a detour."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from onnxscript import opset20 as op

from memplan.pytorch.pool_forms import each
from memplan.pytorch.recurrent_modules import RECURRENT
from memplan.pytorch.surrogate_exports import (
    BACKWARD_THROUGH,
    GRADIENT,
    WITH,
    gradient_translated,
    translated,
    with_gradient_translated,
)

aten = torch.ops.aten


def batch_norm(
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    """Batch normalization; in training mode by the batch's own statistics.

    PyTorch keeps the unbiased variance v·n / (n - 1), ONNX the biased one. From the operator's
    r' = (1 - m)·r + m·v follows PyTorch's (1 - m)·r + m·v·a = a·r' + (1 - m)·(1 - a)·r.
    """
    if not training:
        y = op.BatchNormalization(x, weight, bias, mean, variance, epsilon=eps)
        return y, mean, variance, mean, variance
    y, new_mean, biased = op.BatchNormalization(
        x, weight, bias, mean, variance, epsilon=eps, momentum=1 - momentum, training_mode=1
    )
    share = _bessel(x, variance)
    kept = op.Mul(op.Sub(_number(1.0, share), share), _number(1 - momentum, share))
    new_variance = op.Add(op.Mul(biased, share), op.Mul(variance, kept))
    return y, new_mean, new_variance, new_mean, new_variance


def _bessel(x: Any, like: Any) -> Any:
    """n / (n - 1) for n values per channel, in the type of ``like``."""
    sizes = [size for axis, size in enumerate(x.shape) if axis != 1]
    if all(isinstance(size, int) for size in sizes):
        count = math.prod(sizes)
        return _number(count / max(count - 1, 1), like)
    total = op.Div(op.Size(x), op.Shape(x, start=1, end=2))
    number = op.CastLike(op.Squeeze(total), like)
    return op.Div(number, op.Sub(number, _number(1.0, like)))


def layer_norm(
    x: Any, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> tuple[Any, ...]:
    """Layer normalization, whose weight ONNX wants in any case."""
    axis = -len(shape)
    if weight is None:
        one = op.Constant(value_floats=[1.0])
        weight = op.CastLike(op.Expand(one, op.Shape(x, start=axis)), x)
    return tuple(op.LayerNormalization(x, weight, bias, axis=axis, epsilon=eps))


def conv3d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Sequence[int] = (1, 1, 1),
    padding: Sequence[int] = (0, 0, 0),
    dilation: Sequence[int] = (1, 1, 1),
    groups: int = 1,
) -> Any:
    """Convolution; torch's exporter makes a bias of another shape where there is none."""
    attributes = {
        "strides": each(stride, 3),
        "pads": each(padding, 3) * 2,
        "dilations": each(dilation, 3),
        "group": groups,
    }
    return (
        op.Conv(x, weight, **attributes) if bias is None else op.Conv(x, weight, bias, **attributes)
    )


def bernoulli(x: Any, generator: Any = None) -> Any:
    """1 with probability ``x``; ONNX's own operator is defined the wrong way round."""
    return _one_above(op.Sub(_number(1.0, x), x), x)


def bernoulli_p(x: Any, p: float = 0.5, generator: Any = None) -> Any:
    """1 with probability ``p`` in the shape of ``x``."""
    return _one_above(_number(1.0 - p, x), x)


def _one_above(threshold: Any, x: Any) -> Any:
    """1 where a number drawn from [0, 1) is no less than a threshold: as dropouts keep elements, so
    that the same draws mean the same in both (:mod:`memplan.pytorch.draws`)."""
    return op.CastLike(op.GreaterOrEqual(op.RandomUniformLike(x), threshold), x)


def log_sigmoid(x: Any) -> Any:
    """The logarithm of the sigmoid, which may be a zero; the softplus is exact."""
    return op.Neg(op.Softplus(op.Neg(x)))


def binary_cross_entropy_with_logits(
    x: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> Any:
    """(1 - t)·x + (1 + (p - 1)·t)·softplus(-x), of logits of any size."""
    one = _number(1.0, x)
    logs = op.Softplus(op.Neg(x))
    if pos_weight is not None:
        logs = op.Mul(logs, op.Add(op.Mul(op.Sub(pos_weight, one), target), one))
    loss = op.Add(op.Mul(op.Sub(one, target), x), logs)
    loss = loss if weight is None else op.Mul(loss, weight)
    if reduction == 0:
        return loss
    return (op.ReduceMean if reduction == 1 else op.ReduceSum)(loss, keepdims=False)


def _number(value: float, like: Any) -> Any:
    return op.CastLike(op.Constant(value_float=value), like)


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    aten._native_batch_norm_legit_functional.default: batch_norm,
    aten.native_layer_norm.default: layer_norm,
    BACKWARD_THROUGH: translated,
    GRADIENT: gradient_translated,
    WITH: with_gradient_translated,
    aten.conv3d.default: conv3d,
    aten.bernoulli.default: bernoulli,
    aten.bernoulli.p: bernoulli_p,
    aten.log_sigmoid.default: log_sigmoid,
    aten.binary_cross_entropy_with_logits.default: binary_cross_entropy_with_logits,
    **RECURRENT,
}
"""What torch's exporter is told to use instead of its own."""
