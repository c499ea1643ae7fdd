"""Optimizers whose step is the gradient, its moving average, or the sign of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from memplan.autodiff.emit.value import Value
from memplan.autodiff.optimizers.optimizer import Optimizer, UpdateBuilder
from memplan.errors import UsageError


@dataclass(frozen=True, slots=True)
class Sgd(Optimizer):
    """w - lr·(g + weight_decay·w)."""

    name: ClassVar[str] = "sgd"
    by_element: ClassVar[bool] = True

    def update(self, build: UpdateBuilder, weight: Value, grad: Value) -> Mapping[str, Value]:
        """See the class."""
        grad = self.decayed(build, weight, grad)
        return {weight.name: weight - grad * build.rate(weight)}


@dataclass(frozen=True, slots=True)
class Momentum(Optimizer):
    """v = momentum·v + (1 - dampening)·(g + weight_decay·w); w - lr·v, as ``torch.optim.SGD``.

    The first step is not dampened. ``nesterov`` (0 or 1; Sutskever et al. 2013) looks ahead:
    w - lr·(g + momentum·v).
    """

    name: ClassVar[str] = "momentum"
    by_element: ClassVar[bool] = True
    flags: ClassVar[tuple[str, ...]] = ("maximize", "nesterov")
    momentum: float = 0.9
    dampening: float = 0.0
    nesterov: int = 0

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            UsageError: see the base class; nesterov has nothing to look ahead with.
        """
        Optimizer.__post_init__(self)
        if self.nesterov and (self.dampening or not self.momentum):
            raise UsageError(
                "--optimizer momentum{nesterov=1} needs a momentum and no dampening",
                "leave dampening out",
            )

    def update(self, build: UpdateBuilder, weight: Value, grad: Value) -> Mapping[str, Value]:
        """See the class."""
        grad = self.decayed(build, weight, grad)
        state = build.state(weight, "momentum")
        speed = state * self.momentum + self._dampened(build, weight, grad)
        speed = build.renewed(state, speed)
        ahead = grad + speed * self.momentum if self.nesterov else speed
        rate = build.rate(weight)
        return {weight.name: weight - ahead * rate, state.name: speed}

    def _dampened(self, build: UpdateBuilder, weight: Value, grad: Value) -> Value:
        if not self.dampening:
            return grad

        def share() -> Value:
            usual = build.double(1 - self.dampening)
            chosen = build.op("Where", build.first(), build.double(1.0), usual)
            return build.cast(chosen, weight)

        return grad * build.once("undamped", weight, share)


@dataclass(frozen=True, slots=True)
class Lion(Optimizer):
    """Chen et al. 2023 (arXiv:2302.06675), algorithm 2: the sign of β₁·m + (1 - β₁)·g.

    m = β₂·m + (1 - β₂)·g, and the weight itself decays. The defaults are those of the authors'
    code; learning rates are three to ten times as small as AdamW's.
    """

    name: ClassVar[str] = "lion"
    by_element: ClassVar[bool] = True
    lr: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.99

    def update(self, build: UpdateBuilder, weight: Value, grad: Value) -> Mapping[str, Value]:
        """See the class."""
        state = build.state(weight, "exp_avg")
        direction = build.op("Sign", state * self.beta1 + grad * (1 - self.beta1))
        mean = build.renewed(state, state * self.beta2 + grad * (1 - self.beta2))
        change = direction * build.rate(weight)
        return {weight.name: build.shrunk(weight) - change, state.name: mean}
