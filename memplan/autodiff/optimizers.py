"""Updates of parameters inside the training graph, each right behind its gradient.

State comes in as graph inputs (``<parameter>.momentum``) and goes out under the same name and
``_new``, as the parameters do. Learning rate and step are inputs, too. Formulas and defaults are
PyTorch's (``torch.optim``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import onnx

from memplan.autodiff.emit.emitter import Emitter, Scope
from memplan.autodiff.emit.operations import INT64, Operations
from memplan.autodiff.emit.value import Value
from memplan.errors import UsageError
from memplan.ir.graph import Phase
from memplan.proto.metadata import PHASE_KEY
from memplan.shapes.tensor_type import TensorType
from memplan.strategies.spec import build, split_spec
from memplan.units import did_you_mean

RATE, STEP = "lr", "step"
"""Graph inputs: a float32 and an int64 scalar; the first step is 1."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Makes the update of one parameter after the other; subclasses are the kinds.

    Fields are options (``sgd{weight_decay=0.1}``).
    """

    name: ClassVar[str] = ""

    def __call__(self, emitter: Emitter, name: str, grad: Value) -> Mapping[str, Value]:
        """The new graph outputs: parameter and state."""
        scope = Scope(f"{name}/update", {PHASE_KEY: Phase.UPDATE})
        with emitter.scope(scope):
            return self.update(emitter, emitter.tensor(name), grad)

    def update(self, emitter: Emitter, weight: Value, grad: Value) -> Mapping[str, Value]:
        """Build the update of one parameter."""
        raise NotImplementedError

    def rate(self, emitter: Emitter, like: Value) -> Value:
        """The learning rate in a parameter's element type."""
        scalar = TensorType(onnx.TensorProto.FLOAT, ())
        rate = emitter.once(RATE, lambda: emitter.input(RATE, scalar))
        return emitter.once((RATE, like.dtype), lambda: Operations(emitter).cast(rate, like.dtype))

    def step(self, emitter: Emitter) -> Value:
        """The number of this step as a float64: 1 - β₂ᵗ loses four digits in float32."""
        scalar = TensorType(INT64, ())

        def build() -> Value:
            return Operations(emitter).cast(emitter.input(STEP, scalar), onnx.TensorProto.DOUBLE)

        return emitter.once(STEP, build)

    def state(self, emitter: Emitter, weight: Value, kind: str) -> Value:
        """A state tensor of the shape of a parameter."""
        return emitter.input(f"{weight.name}.{kind}", weight.type)


@dataclass(frozen=True, slots=True)
class Sgd(Optimizer):
    """w - lr·(g + weight_decay·w)."""

    name = "sgd"
    weight_decay: float = 0.0

    def update(self, emitter: Emitter, weight: Value, grad: Value) -> Mapping[str, Value]:
        """See the class."""
        if self.weight_decay:
            grad = grad + weight * self.weight_decay
        return {f"{weight.name}_new": weight - grad * self.rate(emitter, weight)}


@dataclass(frozen=True, slots=True)
class Momentum(Optimizer):
    """v = momentum·v + g + weight_decay·w; w - lr·v."""

    name = "momentum"
    momentum: float = 0.9
    weight_decay: float = 0.0

    def update(self, emitter: Emitter, weight: Value, grad: Value) -> Mapping[str, Value]:
        """See the class."""
        if self.weight_decay:
            grad = grad + weight * self.weight_decay
        state = self.state(emitter, weight, "momentum")
        speed = state * self.momentum + grad
        rate = self.rate(emitter, weight)
        return {f"{weight.name}_new": weight - speed * rate, f"{state.name}_new": speed}


@dataclass(frozen=True, slots=True)
class Adam(Optimizer):
    """Kingma and Ba 2015 (arXiv:1412.6980), algorithm 1; weight decay is added to the gradient."""

    name = "adam"
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def update(self, emitter: Emitter, weight: Value, grad: Value) -> Mapping[str, Value]:
        """See the class."""
        if self.weight_decay:
            grad = grad + weight * self.weight_decay
        return self._stepped(emitter, weight, grad, lambda: weight)

    def _stepped(
        self, emitter: Emitter, parameter: Value, grad: Value, before: Callable[[], Value]
    ) -> Mapping[str, Value]:
        """``before`` builds what the step is taken from: the parameter, decayed or not."""
        first = self.state(emitter, parameter, "exp_avg")
        second = self.state(emitter, parameter, "exp_avg_sq")
        mean = first * self.beta1 + grad * (1 - self.beta1)
        square = second * self.beta2 + grad * grad * (1 - self.beta2)
        size, root = self._corrections(emitter, parameter)
        change = mean / (emitter.op("Sqrt", square) / root + self.eps) * size
        return {
            f"{parameter.name}_new": before() - change,
            f"{first.name}_new": mean,
            f"{second.name}_new": square,
        }

    def _corrections(self, emitter: Emitter, weight: Value) -> tuple[Value, Value]:
        """lr / (1 - β₁ᵗ) and √(1 - β₂ᵗ)."""

        def missing(beta: float) -> Value:
            power = emitter.op("Pow", emitter.const(beta, onnx.TensorProto.DOUBLE), step)
            return Operations(emitter).cast(1 - power, weight.dtype)

        step = self.step(emitter)
        rate = self.rate(emitter, weight)
        size = emitter.once(("size", weight.dtype), lambda: rate / missing(self.beta1))
        root = emitter.once(("root", weight.dtype), lambda: emitter.op("Sqrt", missing(self.beta2)))
        return size, root


@dataclass(frozen=True, slots=True)
class AdamW(Adam):
    """Loshchilov and Hutter 2019 (arXiv:1711.05101): the weight itself decays."""

    name = "adamw"
    weight_decay: float = 0.01

    def update(self, emitter: Emitter, weight: Value, grad: Value) -> Mapping[str, Value]:
        """See the class."""
        rate = self.rate(emitter, weight)
        kept = emitter.once(("kept", weight.dtype), lambda: 1 - rate * self.weight_decay)
        return self._stepped(emitter, weight, grad, lambda: weight * kept)


KINDS: dict[str, type[Any]] = {kind.name: kind for kind in (Sgd, Momentum, Adam, AdamW)}


def parse_optimizer(text: str) -> Optimizer | None:
    """The optimizer that ``adamw{weight_decay=0.1}`` names; None for ``none``.

    Raises:
        UsageError: there is no such optimizer or option, or a value is not a number.
    """
    spec = split_spec(text)
    if spec is not None and spec.name == "none" and not spec.options:
        return None
    if spec is None or spec.name not in KINDS:
        near = did_you_mean(spec.name, KINDS) if spec is not None else ""
        raise UsageError(
            f"--optimizer {text}: there is no such optimizer",
            f"{near}there are none, {', '.join(KINDS)}; options as in adamw{{weight_decay=0.1}}",
        )
    kind: type[Optimizer] = KINDS[spec.name]
    return build(kind, spec, "optimizer", "--optimizer: ")
