"""Optimizers of ``torch.optim`` from before moving averages of squared gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from memplan.autodiff.emit.value import Value
from memplan.autodiff.optimizers.optimizer import DOUBLE, FLOAT, Optimizer, UpdateBuilder


@dataclass(frozen=True, slots=True)
class Asgd(Optimizer):
    """Polyak and Juditsky 1992 (SIAM J. Control Optim. 30), as ``torch.optim.ASGD``.

    Gradient descent whose rate ``eta`` falls as lr / (1 + lambd·lr·t)^alpha. ``ax`` is the
    parameter itself, and from step ``t0`` on the average of all it has been since.
    """

    name: ClassVar[str] = "asgd"
    lr: float = 1e-2
    lambd: float = 1e-4
    alpha: float = 0.75
    t0: float = 1e6

    def update(self, build: UpdateBuilder, weight: Value, grad: Value) -> Mapping[str, Value]:
        """See the class. The rate of a step was set by the one before it, and the first is lr."""
        grad = self.decayed(build, weight, grad)
        average, state = build.state(weight, "ax"), build.scalar_state(weight, "eta")
        rate = build.operations.cast(build.rate(weight), DOUBLE)
        begun = build.operations.cast(rate, FLOAT)
        now = build.op("Where", build.first(), begun, state)
        kept = build.cast(1 - build.operations.cast(now, DOUBLE) * self.lambd, weight)
        new = build.renewed(weight, weight * kept - grad * build.cast(now, weight))
        fallen = build.op("Pow", rate * build.step() * self.lambd + 1, self.alpha)
        later = build.renewed(state, build.operations.cast(rate / fallen, FLOAT))
        return {
            weight.name: new,
            average.name: self._averaged(build, average, new),
            state.name: later,
        }

    def _averaged(self, build: UpdateBuilder, average: Value, new: Value) -> Value:
        def share() -> Value:
            return 1 / build.op("Max", build.step() - (1 + self.t0), 1.0)

        part = build.emitter.once(("mu", self.t0), share)
        whole = build.emitter.once(("whole", self.t0), lambda: build.op("Equal", part, 1.0))
        moved = average + (new - average) * build.cast(part, new)
        return build.op("Where", whole, new, moved)


@dataclass(frozen=True, slots=True)
class Rprop(Optimizer):
    """Riedmiller and Braun 1993 (ICNN), as ``torch.optim.Rprop``: only signs of gradients count.

    Every element has a step size of its own, lr at first, times ``etaplus`` where the gradient
    keeps its sign and ``etaminus`` where it turns; there the element waits for a step.
    """

    name: ClassVar[str] = "rprop"
    lr: float = 1e-2
    etaminus: float = 0.5
    etaplus: float = 1.2
    step_min: float = 1e-6
    step_max: float = 50.0

    def update(self, build: UpdateBuilder, weight: Value, grad: Value) -> Mapping[str, Value]:
        """See the class."""
        grad = self.decayed(build, weight, grad)
        before, state = (build.state(weight, kind) for kind in ("prev", "step_size"))
        same = grad * before
        turned = build.op("Less", same, 0.0)
        less, one = (build.emitter.const(n, weight.dtype) for n in (self.etaminus, 1.0))
        factor = build.op("Where", turned, less, one)
        factor = build.op("Where", build.op("Greater", same, 0.0), self.etaplus, factor)
        size = build.op("Where", build.first(), build.rate(weight), state) * factor
        size = build.renewed(state, build.op("Clip", size, self.step_min, self.step_max))
        used = build.renewed(before, build.op("Where", turned, 0.0, grad))
        new = weight - build.op("Sign", used) * size
        return {weight.name: new, before.name: used, state.name: size}
