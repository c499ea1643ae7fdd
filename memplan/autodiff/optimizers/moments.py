"""Adam's kin: the first moment of gradients over a measure of their size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from memplan.autodiff.emit.value import Value
from memplan.autodiff.optimizers.optimizer import FLOAT, Optimizer, UpdateBuilder

_ENOUGH = 5.0
"""The length above which PyTorch rectifies RAdam; the paper has 4."""


@dataclass(frozen=True, slots=True)
class Adamax(Optimizer):
    """Kingma and Ba 2015 (arXiv:1412.6980), algorithm 2: over the largest gradient that has not
    faded, max(β₂·u, \\|g\\| + eps)."""

    name: ClassVar[str] = "adamax"
    lr: float = 2e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def update(self, build: UpdateBuilder, weight: Value, grad: Value) -> Mapping[str, Value]:
        """See the class."""
        grad = self.decayed(build, weight, grad)
        first, most = (build.state(weight, kind) for kind in ("exp_avg", "exp_inf"))
        mean = build.averaged(first, grad, self.beta1)
        now = build.op("Abs", grad) + self.eps
        largest = build.renewed(most, build.op("Max", most * self.beta2, now))
        rate, lacks = build.rate(weight), build.missing(weight, self.beta1)
        size = build.once("size", weight, lambda: rate / lacks)
        new = weight - mean / largest * size
        return {weight.name: new, first.name: mean, most.name: largest}


@dataclass(frozen=True, slots=True)
class _Decoupled(Optimizer):
    """Both moments; with ``decoupled_weight_decay`` (0 or 1) the weight itself decays."""

    flags: ClassVar[tuple[str, ...]] = ("maximize", "decoupled_weight_decay")
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    decoupled_weight_decay: int = 0

    def _begun(self, build: UpdateBuilder, weight: Value, grad: Value) -> tuple[Value, Value]:
        """What the step is taken from, and the gradient."""
        if self.decoupled_weight_decay:
            return build.shrunk(weight), grad
        return weight, self.decayed(build, weight, grad)

    def _moments(
        self, build: UpdateBuilder, weight: Value, grad: Value
    ) -> tuple[Value, Value, dict[str, Value]]:
        """The new moments, and both by the names of the old ones."""
        first, second = (build.state(weight, kind) for kind in ("exp_avg", "exp_avg_sq"))
        mean = build.averaged(first, grad, self.beta1)
        square = build.averaged(second, grad * grad, self.beta2)
        return mean, square, {first.name: mean, second.name: square}


@dataclass(frozen=True, slots=True)
class NAdam(_Decoupled):
    """Dozat 2016 (ICLR workshop), as ``torch.optim.NAdam``: Adam with Nesterov's look ahead.

    The share of the first moment, μₜ = β₁·(1 - ½·0.96^(t·momentum_decay)), grows from half of β₁ to
    β₁, and ``mu_product`` is the product of all of them so far.
    """

    name: ClassVar[str] = "nadam"
    lr: float = 2e-3
    momentum_decay: float = 4e-3

    def update(self, build: UpdateBuilder, weight: Value, grad: Value) -> Mapping[str, Value]:
        """See the class."""
        before, grad = self._begun(build, weight, grad)
        mean, square, states = self._moments(build, weight, grad)
        state = build.scalar_state(weight, "mu_product")
        one = build.emitter.const(1.0, FLOAT)
        product = build.op("Where", build.first(), one, state)
        product = build.renewed(
            state, product * build.operations.cast(self._share(build, 0), FLOAT)
        )
        own, ahead = self._sizes(build, weight, product)
        root = build.op("Sqrt", square / build.missing(weight, self.beta2)) + self.eps
        new = before - (grad * own + mean * ahead) / root
        return {weight.name: new, **states, state.name: product}

    def _share(self, build: UpdateBuilder, ahead: int) -> Value:
        """μ of this step, or of the one after it."""

        def share() -> Value:
            faded = build.op(
                "Pow", build.double(0.96), (build.step() + ahead) * self.momentum_decay
            )
            return (1 - faded * 0.5) * self.beta1

        return build.emitter.once(("mu", ahead, self.beta1, self.momentum_decay), share)

    def _sizes(self, build: UpdateBuilder, weight: Value, product: Value) -> tuple[Value, Value]:
        """What the gradient and the first moment are multiplied by."""
        now, then = self._share(build, 0), self._share(build, 1)
        wide, rate = build.cast(product, now), build.rate(weight)
        own = (1 - now) / (1 - wide)
        ahead = then / (1 - wide * then)
        return rate * build.cast(own, weight), rate * build.cast(ahead, weight)


@dataclass(frozen=True, slots=True)
class RAdam(_Decoupled):
    """Liu et al. 2020 (arXiv:1908.03265), algorithm 2: Adam once the second moment has seen enough
    gradients for its variance to be finite, and the first moment alone before."""

    name: ClassVar[str] = "radam"

    def update(self, build: UpdateBuilder, weight: Value, grad: Value) -> Mapping[str, Value]:
        """See the class."""
        before, grad = self._begun(build, weight, grad)
        mean, square, states = self._moments(build, weight, grad)
        rate, lacks = build.rate(weight), build.missing(weight, self.beta1)
        size = build.once("size", weight, lambda: rate / lacks)
        if self._longest <= _ENOUGH:
            return {weight.name: before - mean * size, **states}
        size = build.once("rectified", weight, lambda: size * self._factor(build, weight))
        enough = self._enough(build, self._length(build))
        root = build.op("Where", enough, build.op("Sqrt", square) + self.eps, 1.0)
        return {weight.name: before - mean / root * size, **states}

    @property
    def _longest(self) -> float:
        """ρ∞: how many gradients the second moment averages in the end."""
        return 2 / (1 - self.beta2) - 1

    def _length(self, build: UpdateBuilder) -> Value:
        """ρₜ: how many of them it averages now."""

        def length() -> Value:
            step = build.step()
            left = build.op("Pow", build.double(self.beta2), step)
            return self._longest - step * left * 2 / (1 - left)

        return build.emitter.once(("length", self.beta2), length)

    def _enough(self, build: UpdateBuilder, length: Value) -> Value:
        return build.emitter.once(
            ("enough", self.beta2), lambda: build.op("Greater", length, _ENOUGH)
        )

    def _factor(self, build: UpdateBuilder, weight: Value) -> Value:
        """√(1 - β₂ᵗ) and the rectification; 1 as long as there is none."""
        length, longest = self._length(build), self._longest
        enough = self._enough(build, length)
        bounded = build.op("Max", length, _ENOUGH)
        whole = longest / ((longest - 4) * (longest - 2))
        squared = (bounded - 4) * (bounded - 2) * whole / bounded
        lacks = build.missing(build.step(), self.beta2)
        factor = build.op("Sqrt", squared * lacks)
        return build.cast(build.op("Where", enough, factor, 1.0), weight)
