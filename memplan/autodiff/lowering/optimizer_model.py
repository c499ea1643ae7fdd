"""An optimizer model of onnxruntime-training, as an optimizer of ``grad``.

Such a model is one operator on sequences: all parameters, all gradients, all moments. Here it is
one of ``grad``'s optimizers, or AdamW as artifacts have it, with the inputs, state and outputs that
``grad`` gives. Formulas are those of the kernels (``orttraining/training_ops/cpu/optimizer``).
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import onnx
from onnx import helper

from memplan.autodiff.emit.value import Value
from memplan.autodiff.optimizers.formulas import KINDS, adam_corrections, adam_moments
from memplan.autodiff.optimizers.optimizer import Optimizer, UpdateBuilder, optimizer_class
from memplan.errors import ModelError

OPTIMIZERS = ("AdamWOptimizer", "SGDOptimizerV2")
"""Operators on sequences of all parameters: what optimizer models are made of."""
_ADAM, _SGD = OPTIMIZERS
_CLIP = "InplaceClipGradNorm"
_HELPERS = frozenset({"SequenceConstruct", "Identity", "Constant", "Cast"})


def _adamw(
    u: UpdateBuilder,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    late: bool = False,
) -> Value:
    """``late``: AdamW as Hugging Face's transformers once had it. The weight decays behind the
    step, and epsilon is added to the root before its correction."""
    if not late:
        changed: Value = KINDS["adamw"].formula(u, beta1, beta2, eps)
        return changed
    m, v = adam_moments(u, u.gradient, beta1, beta2)
    size, root = adam_corrections(u, beta1, beta2)
    size = size * root
    return u.shrunk(u.weight - m / (u.op("Sqrt", v) + eps) * size)


_ADAMW = optimizer_class(_adamw, name="adamw", by_element=True, weight_decay=0.01)


def read_optimizer(model: onnx.ModelProto, shown: str) -> Optimizer:
    """What the optimizer model does; ``shown`` names it.

    Raises:
        ModelError: it is not one, or has an operator of which no update is known.
    """
    nodes = model.graph.node
    steps = [node for node in nodes if node.op_type in (_ADAM, _SGD)]
    others = sorted({node.op_type for node in nodes} - {_ADAM, _SGD, _CLIP, *_HELPERS})
    if others:
        raise ModelError(
            f"{shown}: no update is known for {', '.join(others)}",
            f"optimizer models have one {_ADAM} or {_SGD}, and perhaps one {_CLIP}",
        )
    if len(steps) != 1:
        raise ModelError(
            f"{shown} is not an optimizer model: {len(steps)} optimizers in it",
            "artifacts call it optimizer_model.onnx",
        )
    clip = next((node for node in nodes if node.op_type == _CLIP), None)
    norm = 0.0 if clip is None else _number(clip, "max_norm", 1.0)
    if steps[0].op_type == _SGD:
        descent: Optimizer = KINDS["sgd"](clip_norm=norm)
        return descent
    return _adam(steps[0], norm, shown)


def _adam(node: onnx.NodeProto, norm: float, shown: str) -> Optimizer:
    if _number(node, "correct_bias", 1) == 0:
        raise ModelError(
            f"{shown}: no update is known for {_ADAM} with correct_bias=0",
            "make the artifacts with bias correction",
        )
    made: Optimizer = _ADAMW(
        beta1=_number(node, "alpha", 0.9),
        beta2=_number(node, "beta", 0.999),
        eps=_number(node, "epsilon", 1e-8),
        weight_decay=_number(node, "weight_decay", 1e-2),
        clip_norm=norm,
        late=_number(node, "adam_mode", 0) == 1,
    )
    return made


def _number(node: onnx.NodeProto, name: str, default: float) -> float:
    for item in node.attribute:
        if item.name == name:
            value = helper.get_attribute_value(item)
            if isinstance(value, int | float):
                # Attributes are float32: the shortest number of which that is the nearest.
                return float(str(np.float32(value))) if isinstance(value, float) else value
            raise ModelError(f"{node.op_type} '{node.name}': attribute '{name}' is not a number")
    return default


def optimizer_text(optimizer: Optimizer) -> str:
    """As ``grad --optimizer`` would have it: what is not the default."""
    usual = type(optimizer)()
    own = {item.name: getattr(optimizer, item.name) for item in fields(optimizer)}
    parts = [f"{k}={v:g}" for k, v in own.items() if v != getattr(usual, k)]
    return f"{optimizer.name}{{{', '.join(parts)}}}" if parts else optimizer.name
