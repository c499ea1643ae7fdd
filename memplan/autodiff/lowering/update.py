"""An optimizer model of onnxruntime-training, folded into the training step.

Such a model is one operator on sequences: all parameters, all gradients, all moments. Here it is
one of ``grad``'s optimizers, or one of their kin, with the inputs, state and outputs that ``grad``
gives. Formulas are those of the kernels (``orttraining/training_ops/cpu/optimizer``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import onnx
from onnx import helper

from memplan.autodiff.emit.emitter import Emitter
from memplan.autodiff.emit.value import Value
from memplan.autodiff.lowering.walk import OPTIMIZERS
from memplan.autodiff.optimizers.adaptive import AdamW
from memplan.autodiff.optimizers.descent import Sgd
from memplan.autodiff.optimizers.optimizer import Optimizer, UpdateBuilder
from memplan.autodiff.optimizers.updates import Updates, members_of
from memplan.errors import ModelError
from memplan.ir.roles import Role
from memplan.proto.nodes import reads_of

_ADAM, _SGD = OPTIMIZERS
_CLIP = "InplaceClipGradNorm"
_HELPERS = frozenset({"SequenceConstruct", "Identity", "Constant", "Cast"})


@dataclass(frozen=True, slots=True)
class OldAdamW(AdamW):
    """AdamW as it was in Hugging Face's transformers, and without a correction.

    ``late``: the weight decays behind the step, and epsilon is added to the root before its
    correction. ``corrected``: moments are divided by 1 - βᵗ.
    """

    late: int = 0
    corrected: int = 1

    def update(self, build: UpdateBuilder, weight: Value, grad: Value) -> Mapping[str, Value]:
        """See the class."""
        first, second = (build.state(weight, kind) for kind in ("exp_avg", "exp_avg_sq"))
        build.step()  # counts, although nothing may read it
        mean = first * self.beta1 + grad * (1 - self.beta1)
        square = second * self.beta2 + grad * grad * (1 - self.beta2)
        deviation, size = build.op("Sqrt", square), build.rate(weight)
        if self.corrected:
            size, root = self._corrections(build, weight)
            if self.late:
                size = build.once("late size", weight, lambda: size * root)
            else:
                deviation = deviation / root
        change = mean / (deviation + self.eps) * size
        after = build.shrunk(weight - change) if self.late else build.shrunk(weight) - change
        return {weight.name: after, first.name: mean, second.name: square}


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
        return Sgd(clip_norm=norm)
    return _adam(steps[0], norm)


def _adam(node: onnx.NodeProto, norm: float) -> Optimizer:
    late = _number(node, "adam_mode", 0) == 1
    corrected = _number(node, "correct_bias", 1) != 0
    usual = AdamW(
        beta1=_number(node, "alpha", 0.9),
        beta2=_number(node, "beta", 0.999),
        eps=_number(node, "epsilon", 1e-8),
        weight_decay=_number(node, "weight_decay", 1e-2),
        clip_norm=norm,
    )
    if corrected and not late:
        return usual
    same = {item.name: getattr(usual, item.name) for item in fields(usual)}
    return OldAdamW(**same, late=int(late), corrected=int(corrected))


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


@dataclass(frozen=True, slots=True)
class Folded:
    """New graph outputs by name, what they renew, the roles of new inputs, and names of new
    nodes."""

    outputs: Mapping[str, Value] = field(default_factory=dict)
    new_values: Mapping[str, str] = field(default_factory=dict)
    roles: Mapping[str, Role] = field(default_factory=dict)
    nodes: frozenset[str] = frozenset()


def fold_updates(
    emitter: Emitter,
    optimizer: Optimizer,
    gradients: Mapping[str, Value],
    order: Sequence[onnx.NodeProto],
) -> Folded:
    """Add the updates of parameters to what the emitter has built.

    An update stands behind its gradient and the last node that reads its parameter, whose buffer it
    may then take; but where all gradients are clipped together, behind all of them.

    Args:
        emitter: it knows the parameters, and by which node of the file each gradient is made.
        optimizer: what to do.
        gradients: by parameter.
        order: the nodes of the file.

    Raises:
        UsageError: see :func:`memplan.autodiff.optimizers.updates.members_of`.
    """
    places = _places(emitter, gradients, order)
    updates = Updates(members_of(optimizer, tuple(gradients)), emitter.types)
    before = {id(node) for node in _made(emitter)}
    outputs: dict[str, Value] = {}
    # What all updates share is made for the first of them.
    for name in sorted(gradients, key=lambda name: places[name]):
        with emitter.placed_behind(order[places[name]].name):
            outputs |= updates.take(emitter, name, gradients[name])
    outputs |= updates.finish(emitter)
    return Folded(
        outputs,
        updates.new_values,
        updates.inputs.roles(),
        frozenset(node.name for node in _made(emitter) if id(node) not in before),
    )


def _made(emitter: Emitter) -> list[onnx.NodeProto]:
    return [node for nodes in (*emitter.behind.values(), emitter.nodes) for node in nodes]


def _places(
    emitter: Emitter, gradients: Mapping[str, Value], order: Sequence[onnx.NodeProto]
) -> dict[str, int]:
    """For each parameter, where in the file its gradient is there and it is read no more."""
    index = {node.name: k for k, node in enumerate(order)}
    found = {n: index.get(emitter.places.get(v.name) or "", 0) for n, v in gradients.items()}
    for k, node in enumerate(order):
        for name in reads_of(node):
            if name in found:
                found[name] = max(found[name], k)
    return found
