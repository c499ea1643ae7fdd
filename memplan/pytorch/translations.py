"""ATen operators → ONNX where torch's exporter means inference, or takes a detour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from onnxscript import opset20 as op

from memplan.pytorch.recurrent import gru, lstm, rnn_relu, rnn_tanh

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
    """Batch normalization; in training mode by the batch's own statistics."""
    if not training:
        y = op.BatchNormalization(x, weight, bias, mean, variance, epsilon=eps)
        return y, mean, variance, mean, variance
    y, mean, variance = op.BatchNormalization(
        x, weight, bias, mean, variance, epsilon=eps, momentum=1 - momentum, training_mode=1
    )
    return y, mean, variance, mean, variance


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    aten._native_batch_norm_legit_functional.default: batch_norm,
    aten.lstm.input: lstm,
    aten.gru.input: gru,
    aten.rnn_tanh.input: rnn_tanh,
    aten.rnn_relu.input: rnn_relu,
}
"""What torch's exporter is told to use instead of its own."""
