"""An optimizer model of onnxruntime-training, folded into the training step.

Such a model is one operator on sequences: all parameters, all gradients, all moments. Here each
parameter has an update of its own behind its gradient, with the names that ``grad`` gives: state
``W.exp_avg`` and ``W.exp_avg_sq``, inputs ``lr`` and ``step``, new values ``X_new``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper

from memplan.autodiff.emit.emitter import Emitter, Scope
from memplan.autodiff.emit.operations import INT64, Operations
from memplan.autodiff.emit.value import Value
from memplan.autodiff.optimizers import RATE, STEP
from memplan.errors import ModelError
from memplan.ir.contract import Role
from memplan.ir.graph import Phase
from memplan.proto.metadata import PHASE_KEY
from memplan.shapes.tensor_type import TensorType

DEFAULT_RATE = 1e-3
"""What the optimizers of onnxruntime-training start with; the model itself does not say."""
_FLOAT, _DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
_ADAM, _SGD, _CLIP = "AdamWOptimizer", "SGDOptimizerV2", "InplaceClipGradNorm"
_HELPERS = frozenset({"SequenceConstruct", "Identity", "Constant", "Cast"})
_MARGIN = 1e-6  # what the norm is raised by before anything is divided by it


@dataclass(frozen=True, slots=True)
class Rule:
    """What an optimizer model does.

    ``adam``: moments; else plain steps. ``late``: the weight decays after the step, and epsilon is
    added to the uncorrected root (as Hugging Face's AdamW), else before it (as PyTorch's).
    ``max_norm``: gradients are scaled together to at most this norm.
    """

    adam: bool
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    late: bool = False
    corrected: bool = True
    max_norm: float | None = None

    def text(self) -> str:
        """As ``grad --optimizer`` would have it."""
        parts: dict[str, float | bool] = {}
        if self.adam:
            parts = {"beta1": self.beta1, "beta2": self.beta2, "eps": self.epsilon}
            parts["weight_decay"] = self.weight_decay
        if self.max_norm is not None:
            parts["max_norm"] = self.max_norm
        inner = ", ".join(f"{key}={value:.6g}" for key, value in parts.items())
        mode = ", weight decay behind the step" if self.late else ""
        mode += "" if self.corrected else ", no bias correction"
        return f"{'adamw' if self.adam else 'sgd'}{{{inner}}}{mode}" if inner else "sgd"


@dataclass(slots=True)
class Updates:
    """New graph outputs by name, what they renew, roles of new inputs, and defaults of these."""

    outputs: dict[str, Value] = field(default_factory=dict)
    new_values: dict[str, str] = field(default_factory=dict)
    roles: dict[str, Role] = field(default_factory=dict)
    defaults: dict[str, onnx.TensorProto] = field(default_factory=dict)
    nodes: set[str] = field(default_factory=set)

    def renew(self, old: Value, new: Value) -> None:
        """Let ``new`` be what ``old`` is in the next step."""
        self.outputs[f"{old.name}_new"] = new
        self.new_values[f"{old.name}_new"] = old.name


def read_rule(model: onnx.ModelProto, shown: str) -> Rule:
    """What the optimizer model does; ``shown`` names it.

    Raises:
        ModelError: it is not one, or has an operator of which no update is known.
    """
    known = {_ADAM, _SGD, _CLIP, *_HELPERS}
    steps = [node for node in model.graph.node if node.op_type in (_ADAM, _SGD)]
    others = sorted({node.op_type for node in model.graph.node} - known)
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
    node = steps[0]
    clip = next((node for node in model.graph.node if node.op_type == _CLIP), None)
    norm = None if clip is None else _number(clip, "max_norm", 1.0)
    if node.op_type == _SGD:
        return Rule(adam=False, max_norm=norm)
    return Rule(
        adam=True,
        beta1=_number(node, "alpha", 0.9),
        beta2=_number(node, "beta", 0.999),
        epsilon=_number(node, "epsilon", 1e-8),
        weight_decay=_number(node, "weight_decay", 1e-2),
        late=_number(node, "adam_mode", 0) == 1,
        corrected=_number(node, "correct_bias", 1) != 0,
        max_norm=norm,
    )


def _number(node: onnx.NodeProto, name: str, default: float) -> float:
    for item in node.attribute:
        if item.name == name:
            value = helper.get_attribute_value(item)
            if isinstance(value, int | float):
                # Attributes are float32: the shortest number of which that is the nearest.
                return float(str(np.float32(value))) if isinstance(value, float) else value
            raise ModelError(f"{node.op_type} '{node.name}': attribute '{name}' is not a number")
    return default


def add_updates(emitter: Emitter, rule: Rule, gradients: Mapping[str, Value]) -> Updates:
    """Append the updates of parameters to what the emitter has built.

    Args:
        emitter: it knows the parameters.
        rule: what to do.
        gradients: by parameter.
    """
    return _Builder(emitter, rule).run(gradients)


class _Builder:
    def __init__(self, emitter: Emitter, rule: Rule) -> None:
        self.emitter, self.rule = emitter, rule
        self.ops = Operations(emitter)
        self.found = Updates()
        self.learning = self._input(RATE, _FLOAT, np.float32(DEFAULT_RATE), Role.HYPERPARAMETER)
        self.counter: Value | None = None
        if rule.adam:
            self.counter = self._input(STEP, INT64, np.int64(1), Role.STEP_COUNTER)

    def run(self, gradients: Mapping[str, Value]) -> Updates:
        emitter, found = self.emitter, self.found
        metadata = {PHASE_KEY: Phase.UPDATE}
        before = {id(node) for nodes in emitter.behind.values() for node in nodes}
        with emitter.scope(Scope("update", metadata)):
            share = self._share(gradients)
        for name, grad in gradients.items():
            # Behind its gradient, which then need not live on; a common norm comes after all.
            place = emitter.places.get(grad.name) if share is None else None
            with emitter.scope(Scope(f"{name}/update", metadata)), emitter.placed_behind(place):
                grad = grad if share is None else grad * self.ops.cast(share, grad.dtype)
                self._step(emitter.tensor(name), grad)
        if self.counter is not None:
            with emitter.scope(Scope(self.counter.name, metadata)):
                found.renew(self.counter, emitter.op("Max", self.counter, 1) + 1)
        made = (node for nodes in (*emitter.behind.values(), emitter.nodes) for node in nodes)
        found.nodes = {node.name for node in made if id(node) not in before}
        return found

    def _share(self, gradients: Mapping[str, Value]) -> Value | None:
        """What gradients are multiplied by: at most 1."""
        if self.rule.max_norm is None:
            return None
        total: Value | None = None
        for grad in gradients.values():
            wide = self.ops.cast(grad, _FLOAT) if grad.dtype != _DOUBLE else grad
            part = self.ops.reduce("ReduceSumSquare", wide, range(grad.rank), keepdims=False)
            total = part if total is None else total + self.ops.cast(part, total.dtype)
        assert total is not None
        norm = self.emitter.op("Sqrt", total)
        return self.emitter.op("Min", self.rule.max_norm / (norm + _MARGIN), 1)

    def _missing(self, beta: float) -> Value:
        """1 - βᵗ, of which float32 would lose four digits."""

        def build() -> Value:
            assert self.counter is not None
            step = self.ops.cast(self.emitter.op("Max", self.counter, 1), _DOUBLE)
            return 1 - self.emitter.op("Pow", self.ops.const(beta, _DOUBLE), step)

        return self._shared(f"missing {beta}", _DOUBLE, build)

    def _input(self, name: str, dtype: int, default: np.generic, role: Role) -> Value:
        value = self.emitter.input(name, TensorType(dtype, ()))
        self.found.roles[value.name] = role
        self.found.defaults[value.name] = onnx.numpy_helper.from_array(
            np.asarray(default), value.name
        )
        return value

    def _shared(self, key: str, dtype: int, build: Callable[[], Value]) -> Value:
        """A number of all updates, made once for each element type, in front of all."""

        def made() -> Value:
            with self.emitter.placed_behind(""), self.emitter.scope(Scope(f"update/{key}")):
                return self.ops.cast(build(), dtype)

        return self.emitter.once((key, dtype), made)

    def _step(self, weight: Value, grad: Value) -> None:
        kind, rule = weight.dtype, self.rule
        rate = self._shared("rate", kind, lambda: self.learning)
        grad = self.ops.cast(grad, kind)
        if not rule.adam:
            self.found.renew(weight, weight - grad * rate)
            return
        first, second = (self._state(weight, name) for name in ("exp_avg", "exp_avg_sq"))
        mean = first * rule.beta1 + grad * (1 - rule.beta1)
        square = second * rule.beta2 + grad * grad * (1 - rule.beta2)
        change = self._change(mean, self.emitter.op("Sqrt", square), kind)
        if not rule.weight_decay:
            after = weight - change
        else:
            kept = self._shared("kept", kind, lambda: 1 - self.learning * rule.weight_decay)
            after = (weight - change) * kept if rule.late else weight * kept - change
        self.found.renew(weight, after)
        self.found.renew(first, mean)
        self.found.renew(second, square)

    def _change(self, mean: Value, deviation: Value, kind: int) -> Value:
        """lr·m/(1 - β₁ᵗ) over √v/√(1 - β₂ᵗ) + ε; or epsilon before the correction, if ``late``."""
        if not self.rule.corrected:
            rate = self._shared("rate", kind, lambda: self.learning)
            return mean / (deviation + self.rule.epsilon) * rate
        wide = self._shared("rate", _DOUBLE, lambda: self.learning)
        size, root = self._missing(self.rule.beta1), self._missing(self.rule.beta2)
        root = self._shared("root", _DOUBLE, lambda: self.emitter.op("Sqrt", root))
        if self.rule.late:
            size = self._shared("size", kind, lambda: wide * root / size)
            return mean / (deviation + self.rule.epsilon) * size
        size = self._shared("size", kind, lambda: wide / size)
        root = self._shared("root", kind, lambda: root)
        return mean / (deviation / root + self.rule.epsilon) * size

    def _state(self, weight: Value, name: str) -> Value:
        value = self.emitter.input(f"{weight.name}.{name}", weight.type)
        self.found.roles[value.name] = Role.OPTIMIZER_STATE
        return value
