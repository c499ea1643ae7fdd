"""Optimizers that divide by the root of a moving average of squared gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from memplan.autodiff.emit.value import Value
from memplan.autodiff.optimizers.optimizer import Optimizer, UpdateBuilder
from memplan.shapes.tensor_type import NARROW_FLOATS


@dataclass(frozen=True, slots=True)
class Adam(Optimizer):
    """Kingma and Ba 2015 (arXiv:1412.6980), algorithm 1; weight decay is added to the gradient.

    ``amsgrad`` (0 or 1; Reddi et al. 2018, arXiv:1904.09237) divides by the largest second moment
    so far.
    """

    name: ClassVar[str] = "adam"
    by_element: ClassVar[bool] = True
    flags: ClassVar[tuple[str, ...]] = ("maximize", "amsgrad")
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    amsgrad: int = 0

    def update(self, build: UpdateBuilder, weight: Value, grad: Value) -> Mapping[str, Value]:
        """See the class."""
        grad = self.decayed(build, weight, grad)
        return self._stepped(build, weight, grad, lambda: weight)

    def _stepped(
        self, build: UpdateBuilder, weight: Value, grad: Value, before: Callable[[], Value]
    ) -> Mapping[str, Value]:
        """``before`` builds what the step is taken from: the parameter, decayed or not."""
        first = build.state(weight, "exp_avg")
        second = build.state(weight, "exp_avg_sq")
        mean = build.renewed(first, first * self.beta1 + grad * (1 - self.beta1))
        square = second * self.beta2 + grad * grad * (1 - self.beta2)
        square = build.renewed(second, square)
        states = {first.name: mean, second.name: square}
        if self.amsgrad:
            largest = build.state(weight, "max_exp_avg_sq")
            square = build.renewed(largest, build.op("Max", largest, square))
            states[largest.name] = square
        change = self._change(build, weight, mean, build.op("Sqrt", square))
        return {weight.name: before() - change, **states}

    def _change(self, build: UpdateBuilder, weight: Value, mean: Value, root: Value) -> Value:
        """lr/(1 - β₁ᵗ)·mean over root/r + eps, where r = √(1 - β₂ᵗ).

        As r·lr/(1 - β₁ᵗ)·mean over root + eps·r that is a division less for every element; not in
        narrow types, in which eps·r may vanish.
        """
        size, share = self._corrections(build, weight)
        if weight.dtype in NARROW_FLOATS:
            return mean / (root / share + self.eps) * size
        least = build.once("least", weight, lambda: share * self.eps)
        return mean / (root + least) * build.once("scaled size", weight, lambda: size * share)

    def _corrections(self, build: UpdateBuilder, weight: Value) -> tuple[Value, Value]:
        """lr / (1 - β₁ᵗ) and √(1 - β₂ᵗ)."""
        build.step()  # the first of the inputs
        rate, lacks = build.rate(weight), partial(build.missing, weight)
        size = build.once("size", weight, lambda: rate / lacks(self.beta1))
        root = build.once("root", weight, lambda: build.op("Sqrt", lacks(self.beta2)))
        return size, root


@dataclass(frozen=True, slots=True)
class AdamW(Adam):
    """Loshchilov and Hutter 2019 (arXiv:1711.05101): the weight itself decays."""

    name: ClassVar[str] = "adamw"
    weight_decay: float = 0.01

    def update(self, build: UpdateBuilder, weight: Value, grad: Value) -> Mapping[str, Value]:
        """See the class."""
        return self._stepped(build, weight, grad, lambda: build.shrunk(weight))


@dataclass(frozen=True, slots=True)
class Adagrad(Optimizer):
    """Duchi et al. 2011 (JMLR 12): g / (√(Σ g²) + eps). The learning rate falls as
    1 / (1 + lr_decay·(t - 1))."""

    name: ClassVar[str] = "adagrad"
    lr: float = 1e-2
    lr_decay: float = 0.0
    eps: float = 1e-10

    def update(self, build: UpdateBuilder, weight: Value, grad: Value) -> Mapping[str, Value]:
        """See the class."""
        grad = self.decayed(build, weight, grad)
        state = build.state(weight, "sum")
        total = build.renewed(state, state + grad * grad)
        change = grad / (build.op("Sqrt", total) + self.eps) * self._rate(build, weight)
        return {weight.name: weight - change, state.name: total}

    def _rate(self, build: UpdateBuilder, weight: Value) -> Value:
        rate = build.rate(weight)
        if not self.lr_decay:
            return rate

        def fallen() -> Value:
            return rate / build.cast((build.step() - 1) * self.lr_decay + 1, weight)

        return build.once("fallen", weight, fallen)


@dataclass(frozen=True, slots=True)
class RmsProp(Optimizer):
    """Tieleman and Hinton 2012 (lecture 6.5), as ``torch.optim.RMSprop``: the epsilon is added to
    the root, and ``momentum`` averages the steps.

    ``centered`` (0 or 1; Graves 2013, arXiv:1308.0850) divides by the deviation from the mean
    gradient instead.
    """

    name: ClassVar[str] = "rmsprop"
    by_element: ClassVar[bool] = True
    flags: ClassVar[tuple[str, ...]] = ("maximize", "centered")
    lr: float = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    centered: int = 0

    def update(self, build: UpdateBuilder, weight: Value, grad: Value) -> Mapping[str, Value]:
        """See the class."""
        grad = self.decayed(build, weight, grad)
        second = build.state(weight, "square_avg")
        square = second * self.alpha + grad * grad * (1 - self.alpha)
        square = build.renewed(second, square)
        states = {second.name: square}
        if self.centered:
            first = build.state(weight, "grad_avg")
            mean = states[first.name] = build.averaged(first, grad, self.alpha)
            square = square - mean * mean
        change = grad / (build.op("Sqrt", square) + self.eps)
        if self.momentum:
            state = build.state(weight, "momentum")
            change = build.renewed(state, state * self.momentum + change)
            states[state.name] = change
        return {weight.name: weight - change * build.rate(weight), **states}


@dataclass(frozen=True, slots=True)
class Adadelta(Optimizer):
    """Zeiler 2012 (arXiv:1212.5701): g·√(acc_delta + eps) / √(square_avg + eps), so that steps have
    the size of those before them."""

    name: ClassVar[str] = "adadelta"
    lr: float = 1.0
    rho: float = 0.9
    eps: float = 1e-6

    def update(self, build: UpdateBuilder, weight: Value, grad: Value) -> Mapping[str, Value]:
        """See the class."""
        grad = self.decayed(build, weight, grad)
        second, steps = (build.state(weight, kind) for kind in ("square_avg", "acc_delta"))
        square = build.averaged(second, grad * grad, self.rho)
        before = build.op("Sqrt", steps + self.eps)
        change = before / build.op("Sqrt", square + self.eps) * grad
        moved = build.averaged(steps, change * change, self.rho)
        new = weight - change * build.rate(weight)
        return {weight.name: new, second.name: square, steps.name: moved}
